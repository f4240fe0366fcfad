"""Our speed compared with other engines on this machine, in alternating runs.

    python bench/peers/compare.py FOLDER [--harness ../shared/bench] [--models A,B] [--pairs 5]

Builds the engines below FOLDER with the shared harness (20 GB, about 35 minutes on two cores; builds are
kept), then measures pairs, ours and the peer's in turn. Every pair is saved in FOLDER, so that a stopped
run can resume. Run it on an idle machine. The tables go to the terminal and to FOLDER/comparison.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import our_side
from alternation import Pair, ResultFile, measure_pair, missing, results
from comparison import CASES, ENGINES, GROUPS, MODELS, Cell, cells
from report import Report
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from their_side import Failed, Harness

from headrace.bench.engine import MAX_REPEATS
from headrace.executors.machine_limits import machine_limits
from headrace.loading.loader import usable_cores


class Comparison:
    """State of one run of this program."""

    def __init__(
        self, harness: Harness, *, fresh: bool, pairs: int, repeats: int, threads: int, console: Console
    ) -> None:
        self._harness, self._pairs, self._repeats = harness, pairs, repeats
        self._threads, self._console = threads, console
        path = harness.folder / "pairs.jsonl"
        if fresh:
            path.unlink(missing_ok=True)
        self._file = ResultFile(path)
        self._machine = machine_limits(threads, None)
        self._ours_version = our_side.version()
        self._failures: dict[str, None] = {}  # ordered, without duplicates

    def run(self, wanted: Sequence[Cell]) -> None:
        """Build what the cells need, then measure them; failures are recorded and skipped."""
        our_side.compile_modules()
        ready = [cell for cell in wanted if self._built(cell)]
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True) as progress:
            task = progress.add_task("", total=len(ready))
            for cell in ready:
                progress.update(task, description=cell.key)
                try:
                    self._measure(cell)
                except Failed as failed:
                    self._fail(f"{cell.key}: {failed}")
                progress.advance(task)

    def _built(self, cell: Cell) -> bool:
        try:
            for part in cell.match.parts:
                self._harness.build(part, self._say)
        except Failed as failed:
            self._fail(f"{cell.match.engine.name} {cell.match.quant}: {failed}")
            return False
        return True

    def _measure(self, cell: Cell) -> None:
        while missing(self._pairs_of(cell), self._pairs, self._repeats):
            pair = measure_pair(
                cell,
                self._versions(cell),
                lambda: our_side.measure(
                    self._harness.folder, cell.model, cell.match, cell.case, self._threads
                ),
                lambda: self._harness.measure(cell.model, cell.match, cell.case, self._threads),
                lambda: machine_limits(self._threads, None),
            )
            self._file.add(pair)
            figure = cell.case.figures[0]
            ours, peer = pair.ours[figure.name], pair.peer[figure.name]
            self._say(
                f"{cell.key}: {ours:.4g} / {peer:.4g} {figure.unit}, ratio {figure.ratio(ours, peer):.2f}"
            )

    def report(self, wanted: Sequence[Cell]) -> Report:
        """A report over all saved pairs, from this run and earlier ones."""
        measured = {cell: self._pairs_of(cell) for cell in wanted}
        return Report(
            machine=self._machine,
            ours_version=self._ours_version,
            peer_versions={
                cell.match.engine.name: self._harness.version(cell.match.engine)
                for cell, pairs in measured.items()
                if pairs
            },
            found={cell: results(cell, pairs, self._pairs) for cell, pairs in measured.items() if pairs},
            failures=list(self._failures),
        )

    def _versions(self, cell: Cell) -> tuple[str, str]:
        return self._ours_version, self._harness.version(cell.match.engine)

    def _pairs_of(self, cell: Cell) -> list[Pair]:
        return self._file.of(cell, self._versions(cell), self._machine)

    def _fail(self, message: str) -> None:
        if message not in self._failures:
            self._failures[message] = None
            self._say(f"left out: {message}")

    def _say(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False)


def main(words: Sequence[str] | None = None) -> int:
    """Returns 0 if every cell was measured, 1 if some were not, 130 if interrupted."""
    asked = _parser().parse_args(words)
    if not (asked.harness / "peers.py").is_file():
        print(
            f"there is no bench harness in {asked.harness.absolute()}: it comes with the project's shared"
            " data, which is next to the checkout as ../shared; name its folder: HARNESS=../shared/bench",
            file=sys.stderr,
        )
        return 1
    asked.folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    wanted = cells(asked.models, asked.peers, asked.weights, asked.cases)
    harness = Harness(asked.harness.resolve(), asked.folder.resolve())
    comparison = Comparison(
        harness,
        fresh=asked.fresh,
        pairs=asked.pairs,
        repeats=asked.repeats,
        threads=asked.threads,
        console=console,
    )
    stopped = False
    try:
        comparison.run(wanted)
    except KeyboardInterrupt:
        stopped = True
    report = comparison.report(wanted)
    path = asked.folder / "comparison.md"
    path.write_text(report.markdown())
    console.print(report.table())
    for failure in report.failures:
        console.print(f"left out: {failure}", highlight=False, markup=False)
    console.print(f"every figure: {path}", highlight=False)
    if stopped:
        console.print("stopped: run the same command to resume")
    return 130 if stopped else min(len(report.failures), 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the engines are built and results are kept")
    parser.add_argument("--harness", type=Path, default=Path("../shared/bench"))
    for name, choices in (
        ("models", MODELS),
        ("peers", tuple(engine.name for engine in ENGINES)),
        ("weights", GROUPS),
        ("cases", tuple(case.name for case in CASES)),
    ):
        parser.add_argument(
            f"--{name}", type=_some_of(choices), default=choices, help=f"some of {','.join(choices)}"
        )
    parser.add_argument("--pairs", type=_count, default=5, help="pairs of each cell (5)")
    parser.add_argument(
        "--repeats",
        type=_whole,
        default=MAX_REPEATS,
        help=f"maximum repeats of slow pairs, per pair ({MAX_REPEATS}); 0 for a machine that"
        " is always busy: slow pairs then count, and are marked",
    )
    parser.add_argument("--threads", type=_count, default=usable_cores())
    parser.add_argument("--fresh", action="store_true", help="discard earlier measurements")
    return parser


def _some_of(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return names

    return chosen


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _whole(text: str) -> int:
    return 0 if text == "0" else _count(text)


if __name__ == "__main__":
    # `timeout` stops all child processes, like Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
