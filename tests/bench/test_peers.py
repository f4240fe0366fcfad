"""Comparisons with other engines: cells, which pairs count, tables. All measurements are fake."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import compare
import pytest
from alternation import Pair, ResultFile, measure_pair, missing, results, slow_marks
from comparison import CASES, ENGINES, GROUPS, MODELS, Cell, cells
from msgspec.structs import replace
from processes import run_whole
from report import Report
from their_side import Failed, Harness

from headrace.bench.engine import MAX_REPEATS
from headrace.executors.machine_limits import Limits

LIMITS = Limits(
    cpu="a", isa="b", threads=2, measured_at="c", read_bytes_per_s=40e9, f32_per_s=1e9, bf16_per_s=1e9,
    int8_per_s=2e12,
)  # fmt: skip
HALF = replace(LIMITS, int8_per_s=1e12)
NAMES = {
    "engines": [engine.name for engine in ENGINES],
    "groups": GROUPS,
    "cases": [case.name for case in CASES],
}
VERSIONS = ("1", "2")


def cell_of(case: str, model: str = "A") -> Cell:
    return cells([model], ["llama.cpp"], ["int4"], [case])[0]


def pair(
    ours: float, peer: float, *limits: Limits, cell: Cell | None = None, versions: tuple[str, str] = VERSIONS
) -> Pair:
    cell = cell or cell_of("prefill512")
    names = [figure.name for figure in cell.case.figures]
    probes = iter(limits or (LIMITS,) * 3)
    return measure_pair(
        cell,
        versions,
        lambda: dict.fromkeys(names, ours),
        lambda: dict.fromkeys(names, peer),
        lambda: next(probes),
    )


def test_cells_combine_models_cases_and_matches() -> None:
    found = cells(MODELS, **NAMES)
    assert len({cell.key for cell in found}) == len(found)
    assert {cell.match.group for cell in found} == set(GROUPS)
    for cell in found:
        assert cell.match.parts[0] == "models"
    assert not [
        cell for cell in found if (cell.match.engine.name, cell.case.name) == ("ik_llama.cpp", "cold")
    ]
    same = [cell.match for cell in found if cell.match.group == "gguf"]
    assert {match.model_file.format("A") for match in same} == {
        f"A-{quant}.gguf" for quant in ("q4_0", "q4_k_m", "q6_k", "q8_0")
    }
    assert {match.weights for match in same} == {"keep"}


def test_sides_alternate_between_probes() -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[], dict[str, float]]:
        def measure() -> dict[str, float]:
            order.append(name)
            return {"prefill 512": 1.0}

        return measure

    def probe() -> Limits:
        order.append("probe")
        return LIMITS

    measure_pair(cell_of("prefill512"), VERSIONS, side("ours"), side("peer"), probe)
    assert order == ["probe", "ours", "probe", "peer", "probe"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_pair_is_slow_at_any_probe(place: int) -> None:
    probes = [LIMITS, LIMITS, LIMITS]
    probes[place] = HALF
    assert slow_marks([pair(1, 1), pair(1, 1, *probes)]) == [False, True]
    # A better peak measured later shows that the first was slow as well.
    assert slow_marks([pair(1, 1, HALF, HALF, HALF), pair(1, 1)]) == [True, False]


def test_one_fast_read_probe_marks_no_other_pair() -> None:
    fast, weak = (replace(LIMITS, read_bytes_per_s=speed) for speed in (60e9, 30e9))
    assert slow_marks([pair(1, 1), pair(1, 1, LIMITS, fast, LIMITS)]) == [False, False]
    assert slow_marks([pair(1, 1), pair(1, 1, LIMITS, LIMITS, weak)]) == [False, True]


def test_slow_pairs_are_repeated_a_limited_number_of_times() -> None:
    quick, slow = pair(1, 1), pair(1, 1, HALF, LIMITS, LIMITS)
    assert missing([], 1)
    assert not missing([quick], 1)
    assert missing([quick, slow], 2)
    assert not missing([quick, slow, quick], 2)
    assert missing([quick, *[slow] * (2 * MAX_REPEATS)], 2)
    assert not missing([quick, *[slow] * (2 * MAX_REPEATS + 1)], 2)
    assert missing([slow], 2, repeats=0)
    assert not missing([quick, slow], 2, repeats=0)


def test_ratios_are_medians_of_quick_pairs() -> None:
    pairs = [pair(900, 100, HALF, LIMITS, LIMITS), pair(200, 100), pair(330, 110), pair(100, 100)]
    (result,) = results(cell_of("prefill512"), pairs, 3)
    assert (result.ratio.min, result.ratio.median, result.ratio.max) == (1, 2, 3)
    assert (result.ours, result.peer, result.pairs, result.slow, result.slow_kept) == (200, 100, 3, 1, 0)
    (result,) = results(cell_of("prefill512"), pairs, 4)
    assert (result.ratio.max, result.slow_kept) == (9, 1)


def test_less_time_and_memory_are_better() -> None:
    (cold,) = results(cell_of("cold"), [pair(0.5, 1, cell=cell_of("cold"))], 1)
    decode, memory = results(cell_of("decode1"), [pair(0.5, 1, cell=cell_of("decode1"))], 1)
    assert (cold.ratio.median, decode.ratio.median, memory.ratio.median) == (2, 0.5, 2)


def test_pairs_are_kept_for_the_next_run(tmp_path: Path) -> None:
    path, cell = tmp_path / "pairs.jsonl", cell_of("prefill512")
    file = ResultFile(path)
    file.add(pair(1, 2))
    file.add(pair(3, 4, versions=("other", "2")))
    file.add(pair(5, 6, *[replace(LIMITS, threads=1)] * 3))
    path.write_text(path.read_text() + '{"cell": "A in')  # as an interrupted write leaves it
    again = ResultFile(path)
    assert [found.ours for found in again.of(cell, VERSIONS, LIMITS)] == [{"prefill 512": 1}]
    again.add(pair(7, 8))
    assert len(ResultFile(path).of(cell, VERSIONS, LIMITS)) == 2


def test_tables_name_versions_ratios_and_failures() -> None:
    found = {
        cell: results(cell, [pair(300, 100, cell=cell), pair(100, 100, HALF, HALF, HALF, cell=cell)], 2)
        for cell in (cell_of("prefill512"), cell_of("decode1"))
    }
    report = Report(
        machine=LIMITS,
        ours_version="0.1 (abc)",
        peer_versions={"llama.cpp": "9.9"},
        found=found,
        failures=["ik was not built"],
    )
    text = report.markdown()
    for expected in (
        "headrace 0.1 (abc); llama.cpp 9.9",
        "| A | int4 | llama.cpp q4_0 | 2.00* (1.00–3.00) | 2.00* (1.00–3.00) | – | – | 0.67* (0.33–1.00) |",
        "| prefill 512 | 200.0 tok/s | 100.0 tok/s | 2.00* (1.00–3.00) | 2 | 1 | 40.0 GB/s, 2.00 T |",
        "- ik was not built",
    ):
        assert expected in text
    assert report.table().row_count == 1


def fake_harness(folder: Path, setup: str, reply: str = "") -> Harness:
    scripts = folder / "scripts"
    scripts.mkdir()
    (scripts / "setup.sh").write_text(setup)
    (scripts / "peers.py").write_text(f"print({reply!r})")
    (folder / "peers").mkdir()
    return Harness(scripts, folder / "peers")


def test_existing_builds_are_reused(tmp_path: Path) -> None:
    harness = fake_harness(tmp_path, 'echo "$1" >> "$PEERS_DIR/calls"')
    for _ in range(2):
        harness.build("gguf", lambda text: None)
    Harness(tmp_path / "scripts", harness.folder).build("llama", lambda text: None)
    assert (harness.folder / "calls").read_text().split() == ["models", "llama", "gguf"]


def test_a_failed_part_is_reported_and_not_rebuilt(tmp_path: Path) -> None:
    setup = 'echo "$1" >> "$PEERS_DIR/calls"; echo no compiler >&2; [ "$1" = models ]'
    harness = fake_harness(tmp_path, setup)
    for _ in range(2):
        with pytest.raises(Failed, match=r"llama was not built \(exit code 1, .*no compiler"):
            harness.build("gguf", lambda text: None)
    assert (harness.folder / "calls").read_text().split() == ["models", "llama"]


def test_figures_are_taken_from_the_harness(tmp_path: Path) -> None:
    harness = fake_harness(tmp_path, "", json.dumps({"tok_s": 50, "peak_rss_mib": 2}))
    cell = cell_of("decode1")
    assert harness.measure("A", cell.match, cell.case, 2) == {
        "decode, batch 1": 50,
        "peak memory": 2 << 20,
    }
    (tmp_path / "scripts" / "peers.py").write_text(
        'print(\'{"error": "it ended with -6:\\\\nlines\\\\nGGML_ASSERT"}\')'
    )
    with pytest.raises(Failed, match=r"llama\.cpp: it ended with -6: GGML_ASSERT"):
        harness.measure("A", cell.match, cell.case, 2)
    (tmp_path / "scripts" / "peers.py").write_text("raise SystemExit('no such quant')")
    with pytest.raises(Failed, match="no such quant"):
        harness.measure("A", cell.match, cell.case, 2)


@pytest.mark.parametrize(
    ("name", "version"),
    [("sdist/llama_cpp_python-0.3.36.tar.gz", "0.3.36"), ("sdist/llama_cpp_python-1.0rc1.tar.gz", "1.0rc1")],
)
def test_versions_are_those_of_the_packages(tmp_path: Path, name: str, version: str) -> None:
    harness = Harness(tmp_path, tmp_path)
    assert harness.version(ENGINES[0]) == "unknown"
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).touch()
    assert harness.version(ENGINES[0]) == version


def test_a_run_measures_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_harness(tmp_path, "", json.dumps({"tok_s": 50}))
    calls: list[str] = []

    def ours(folder: Path, model: str, match: object, case: object, threads: int) -> dict[str, float]:
        calls.append(model)
        if model == "B":
            raise Failed("headrace: no memory")
        return {"prefill 512": 100}

    monkeypatch.setattr(compare.our_side, "measure", ours)
    monkeypatch.setattr(compare, "machine_limits", lambda threads, cache: LIMITS)
    words = [str(tmp_path / "peers"), "--harness", str(tmp_path / "scripts"), "--peers", "llama.cpp"]
    words += ["--weights", "int4", "--cases", "prefill512", "--pairs", "2"]
    assert compare.main([*words, "--models", "A"]) == 0
    assert calls == ["A", "A"]
    assert compare.main(words) == 1
    assert calls == ["A", "A", "B"]
    assert "left out: B int4 / llama.cpp q4_0 prefill512: headrace: no memory" in capsys.readouterr().out
    assert "2.00 (2.00–2.00)" in (tmp_path / "peers" / "comparison.md").read_text()
    assert compare.main([*words, "--models", "A", "--fresh"]) == 0
    assert calls == ["A", "A", "B", "A", "A"]


@pytest.mark.parametrize(
    "words",
    [
        ["--models", "C"],
        ["--pairs", "0"],
        ["--repeats", "-1"],
        ["--peers", "llama.cpp,mine"],
        ["--cases", ""],
    ],
)
def test_invalid_arguments_are_rejected(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        compare.main([str(tmp_path), *words])
    assert exit.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_error_without_the_harness_says_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main([str(tmp_path), "--harness", str(tmp_path / "none")]) == 1
    assert "../shared/bench" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_ends_what_a_measurement_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    words = f'sleep 300 & echo $! > "{started}.part"; mv "{started}.part" "{started}"; wait'

    def interrupt(*_: object) -> None:
        if started.exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_whole(["sh", "-c", words])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ends(int(started.read_text()))


def ends(process: int) -> bool:
    """True if a process ends within ten seconds, even if it has not been reaped."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_output_and_exit_code_of_a_program() -> None:
    done = run_whole(
        ["sh", "-c", 'echo out; echo "$WORD" >&2; exit 3'], {"WORD": "err", "PATH": os.environ["PATH"]}
    )
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)
