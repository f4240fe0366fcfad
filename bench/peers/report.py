"""The tables of a comparison: ratios for the terminal, and Markdown with all results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from alternation import Result
from comparison import FIGURES, MEMORY, Cell, Figure
from msgspec import Struct
from rich.table import Table

from headrace.executors.machine_limits import Limits

_EXPLANATION = """\
Ratios are ours to theirs, above 1 where ours is better (faster, sooner, smaller): the median of pairs that
were measured in alternation, with the least and the most. The machine was probed before, between and after;
a pair during which it was slower than otherwise was repeated (`slow` counts them), and an asterisk says
that too few quick pairs were found. `file` means the same GGUF file in both. llama.cpp starts cold as a
server, the others as a program; memory is the peak of a process that generates 128 tokens after 512.
Formats of one name differ in bytes: see the harness's README."""


class Report(Struct, frozen=True, kw_only=True):
    """`found` has the results of each cell that has any; `failures` explains why others have none."""

    machine: Limits
    ours_version: str
    peer_versions: Mapping[str, str]
    found: Mapping[Cell, Sequence[Result]]
    failures: Sequence[str]

    def table(self) -> Table:
        """For the terminal."""
        table = Table(title="ours / theirs")
        for name in _HEADER:
            table.add_column(name, justify="left" if name in _HEADER[:3] else "right", overflow="fold")
        for row in self._ratio_rows():
            table.add_row(*(entry.replace(" (", "\n(") for entry in row))
        return table

    def markdown(self) -> str:
        """The whole report."""
        machine = self.machine
        peers = ", ".join(f"{name} {version}" for name, version in self.peer_versions.items())
        lines = [
            "# Compared with other engines",
            "",
            f"`make bench-peers`, {datetime.now(UTC).date()}, {machine.threads} threads of {machine.cpu} "
            f"({machine.isa}). headrace {self.ours_version}; {peers}.",
            "A = Qwen2.5-0.5B, B = Llama-3.2-1B, random weights.",
            "",
            _EXPLANATION,
            "",
            *_markdown_table(_HEADER, self._ratio_rows()),
            "",
            "## Every figure",
            "",
            *_markdown_table(_DETAIL_HEADER, self._detail_rows()),
        ]
        if self.failures:
            lines += ["", "## Not measured", "", *(f"- {failure}" for failure in self.failures)]
        return "\n".join(lines) + "\n"

    def _ratio_rows(self) -> list[tuple[str, ...]]:
        rows: dict[tuple[str, str, str], dict[Figure, str]] = {}
        for cell, found in self.found.items():
            entries = rows.setdefault(_names(cell), {})
            entries |= {result.figure: _ratio(result) for result in found}
        return [
            (*names, *(entries.get(figure, "–") for figure in FIGURES)) for names, entries in rows.items()
        ]

    def _detail_rows(self) -> list[tuple[str, ...]]:
        return [
            (
                *_names(cell),
                result.figure.name,
                _number(result.ours, result.figure),
                _number(result.peer, result.figure),
                _ratio(result),
                f"{result.pairs}",
                f"{result.slow}",
                f"{result.machine.read_per_s / 1e9:.1f} GB/s, {result.machine.int8_per_s / 1e12:.2f} T",
            )
            for cell, found in self.found.items()
            for result in found
        ]


_HEADER = ("model", "ours", "peer", *(figure.name for figure in FIGURES))
_DETAIL_HEADER = (
    *("model", "ours", "peer", "figure", "ours", "theirs", "ratio", "pairs", "slow"),
    "machine: read, int8/s",
)


def _names(cell: Cell) -> tuple[str, str, str]:
    return cell.model, cell.match.label, f"{cell.match.engine.name} {cell.match.quant}"


def _ratio(result: Result) -> str:
    ratio = result.ratio
    mark = "*" if result.slow_kept else ""
    return f"{ratio.median:.2f}{mark} ({ratio.min:.2f}–{ratio.max:.2f})"


def _number(value: float, figure: Figure) -> str:
    if figure is MEMORY:
        return f"{value / 1e6:,.0f} MB"
    return f"{value:.2f} s" if figure.unit == "s" else f"{value:,.1f} {figure.unit}"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
