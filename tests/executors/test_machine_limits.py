"""Machine limits: the best of several probes, kept in a file, and when that is measured again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace import _native
from headrace.executors import machine_limits as limits
from headrace.executors.cpu_cache import cache_bytes
from headrace.executors.machine_limits import Limits, machine_limits, raised

LIMITS = Limits(
    cpu="x",
    isa="y",
    threads=1,
    measured_at="2026-01-01T00:00:00+00:00",
    read_bytes_per_s=10e9,
    f32_per_s=1e9,
    bf16_per_s=2e9,
    int8_per_s=4e9,
)


def fake_probes(
    monkeypatch: pytest.MonkeyPatch, *probes: tuple[float, float]
) -> Iterator[tuple[float, float]]:
    """Probes of (GB/s, share of the cores' time), one after the other."""
    left = iter(probes)

    def probe(threads: int) -> tuple[Limits, float]:
        gigabytes, share = next(left)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(LIMITS, measured_at=now, read_bytes_per_s=gigabytes * 1e9), share

    monkeypatch.setattr(limits, "_probe", probe)
    return left


def test_measured_once_and_kept(tmp_path: Path) -> None:
    first = machine_limits(1, tmp_path / "cache")
    assert min(first.read_bytes_per_s, first.f32_per_s, first.bf16_per_s, first.int8_per_s) > 1e6
    assert first.isa == _native.isa() and first.threads == 1
    assert machine_limits(1, tmp_path / "cache") == first
    [file] = (tmp_path / "cache").iterdir()
    for content in ("", "{}", "[1]", file.read_text()[:-9]):
        file.write_text(content)
        assert machine_limits(1, tmp_path / "cache").int8_per_s > 1e6


def test_two_quiet_probes_that_agree_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = fake_probes(monkeypatch, (30, 1.0), (33, 0.98), (99, 1.0))
    found = machine_limits(1, tmp_path)
    assert (found.read_bytes_per_s, found.disturbed, next(left)) == (33e9, False, (99, 1.0))


@pytest.mark.parametrize(
    "probes",
    [
        [(5.6, 0.5), (5.0, 0.6), (6.0, 0.5), (5.5, 0.4)],  # others had the cores
        [(5.6, 1.0), (10.0, 1.0), (20.0, 1.0), (33.0, 1.0)],  # others had the memory
    ],
)
def test_limits_of_a_busy_machine_are_marked_and_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probes: list[tuple[float, float]]
) -> None:
    fake_probes(monkeypatch, *probes)
    busy = machine_limits(1, tmp_path)
    assert busy.disturbed and busy.read_bytes_per_s == 1e9 * max(speed for speed, _ in probes)
    assert machine_limits(1, tmp_path) == busy  # for a while
    old = datetime.now(UTC) - timedelta(seconds=limits.DISTURBED_FOR_S + 1)
    limits._keep(replace(busy, measured_at=old.isoformat()), limits._file(1, tmp_path))
    fake_probes(monkeypatch, (40, 1.0), (39, 1.0))
    quiet = machine_limits(1, tmp_path)
    assert (quiet.read_bytes_per_s, quiet.disturbed) == (40e9, False)
    assert machine_limits(1, tmp_path) == quiet


def test_a_busy_machine_lowers_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_probes(
        monkeypatch, (33, 1.0), (33, 1.0), (5, 0.5), (5, 0.5), (5, 0.5), (5, 0.5), (20, 1.0), (20, 1.0)
    )
    assert machine_limits(1, tmp_path).read_bytes_per_s == 33e9
    again = machine_limits(1, tmp_path, measure=True)
    assert (again.read_bytes_per_s, again.disturbed) == (33e9, True)
    # Two quiet probes later replace only what is not known to be better.
    assert machine_limits(1, tmp_path, measure=True).read_bytes_per_s == 33e9


def test_a_run_that_reads_faster_raises_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_probes(monkeypatch, (10, 1.0), (10, 1.0))
    before = machine_limits(1, tmp_path)
    assert raised(before, 9e9, tmp_path) == before
    assert raised(before, 12e9, tmp_path).read_bytes_per_s == 12e9
    assert machine_limits(1, tmp_path).read_bytes_per_s == 12e9


def test_an_unwritable_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert machine_limits(1, tmp_path / "file").threads == 1
    assert machine_limits(1, None).threads == 1


def test_another_processor_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_limits(1, tmp_path)
    monkeypatch.setattr(limits, "cpu_name", lambda: "another")
    assert machine_limits(1, tmp_path).cpu == "another"
    assert len(list(tmp_path.iterdir())) == 2


def test_caches_that_cores_share_count_once(tmp_path: Path) -> None:
    for cpu in (0, 1):
        for index, (level, kind, size, shared) in enumerate(
            [(1, "Data", "32K", cpu), (2, "Unified", "1024K", cpu), (3, "Unified", "32M", "0-1")]
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (
                ("level", level),
                ("type", kind),
                ("size", size),
                ("shared_cpu_list", shared),
            ):
                (folder / name).write_text(f"{value}\n")
    assert cache_bytes(tmp_path) == 34 << 20
    assert cache_bytes(tmp_path / "nothing") > 1 << 20  # assumed
    assert cache_bytes() > 1 << 18


@pytest.mark.parametrize(("rounds", "repeats"), [(0, 1), (1, 0), (-1, 1)])
def test_peaks_need_rounds(rounds: int, repeats: int) -> None:
    with pytest.raises(ValueError, match="at least one round"):
        _native.compute_peaks(_native.Pool(1), rounds, repeats)
