"""Terminal output of `headrace bench endpoints`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.terminal import print_table

if TYPE_CHECKING:
    from headrace.providers.probe.summary import EndpointSummary, SpeedSummary

_SPEED = ("ENDPOINT", "PROMPT", "PARALLEL", "N", "FIRST", "ANSWER", "TOK/S", "500 TOKENS", "TOTAL", "ERRORS")
_PRICE = ("ENDPOINT", "MODEL", "IN $/M", "OUT $/M", "BLENDED", "SPENT $", "QUALITY")


def print_summaries(found: Sequence[EndpointSummary]) -> None:
    """A table of speeds, one of prices and quality, and what the honesty checks found."""
    print_table([_speed(one, row) for one in found for row in one.speed], header=_SPEED)
    print("\nmedians, seconds: FIRST token of any kind, first token of the ANSWER, an answer of 500 TOKENS\n")
    print_table([_price(one) for one in found], header=_PRICE)
    print()
    rows = [(one.endpoint, check.name, check.verdict, check.detail) for one in found for check in one.checks]
    print_table(rows, header=("ENDPOINT", "CHECK", "VERDICT", "DETAIL"))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _speed(one: EndpointSummary, row: SpeedSummary) -> tuple[str, ...]:
    errors = ", ".join(f"{count} {kind}" for kind, count in sorted(row.errors.items()))
    return (
        one.endpoint,
        f"{row.prompt_tokens:,}",
        str(row.parallel),
        str(row.samples),
        *(_seconds(value) for value in (row.first_s, row.first_answer_s)),
        "" if row.tokens_per_s is None else f"{row.tokens_per_s:.1f}",
        *(_seconds(value) for value in (row.answer_s, row.total_s)),
        errors,
    )


def _price(one: EndpointSummary) -> tuple[str, ...]:
    groups = ", ".join(f"{name} {share:.0%}" for name, share in one.quality.items() if name != "all")
    prices = ("" if value is None else f"{value:g}" for value in (one.input, one.output, one.blended))
    quality = f"{one.quality['all']:.0%} ({groups})" if "all" in one.quality else ""
    return (one.endpoint, one.model, *prices, f"{one.usd:.4f}", quality)
