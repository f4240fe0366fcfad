"""Text formatting of results, for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.bench.serve.metrics import Distribution, Figures, Goals

LATENCIES = (
    ("TTFT", "ttft_s", "time to first token: from when a request was due to its first output"),
    ("TPOT", "tpot_s", "time per output token after the first: (E2E - TTFT) / (output tokens - 1)"),
    ("ITL", "itl_s", "inter-token latency: every gap between two events with output"),
    ("E2E", "e2e_s", "end to end: from when a request was due to its last output"),
)
SPREAD = ("mean", "p50", "p90", "p95", "p99", "max")
DEFINITIONS = (
    *((name, meaning) for name, _, meaning in LATENCIES),
    ("due", "in a closed loop when the user's last answer ended, in open loops at the scheduled time: "
     "delays of client and server are included (no coordinated omission), as is connecting"),
    ("tokens/s", "output tokens of all successful requests, divided by the time from when the first was due "
     "to the last end; counted by the server's usage"),
    ("tokens/s per user", "1 / TPOT of each request"),
    ("goodput", "requests that met every goal, per second and as a share of all requests sent"),
    ("refused", "answered with 429, 503 or 529; other errors count as failed"),
)  # fmt: skip


def milliseconds(seconds: float) -> str:
    """At least three digits: 0.42, 12.3, 1,234."""
    return number(1000 * seconds)


def number(value: float) -> str:
    """At least three digits."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def latency_rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    """One row per latency: its name, then the percentiles of `SPREAD` in milliseconds."""
    for name, field, _ in LATENCIES:
        found: Distribution | None = getattr(figures, field)
        yield name, *("–" if found is None else milliseconds(getattr(found, rank)) for rank in SPREAD)


def of_user(figures: Figures) -> str:
    """The median user's tokens per second."""
    found = figures.tokens_per_s_per_user
    return "–" if found is None else number(found.p50)


def cached_share(figures: Figures) -> str | None:
    """The share of prompt tokens that the server had in its prefix cache; None where it does not tell."""
    if figures.cached_tokens is None or not figures.prompt_tokens:
        return None
    return f"{figures.cached_tokens / figures.prompt_tokens:.0%}"


def goals_text(goals: Goals) -> str:
    """`TTFT ≤ 500 ms, TPOT ≤ 100 ms`."""
    given = (("TTFT", goals.ttft_s), ("TPOT", goals.tpot_s), ("E2E", goals.e2e_s))
    return ", ".join(f"{name} ≤ {1000 * goal:g} ms" for name, goal in given if goal is not None) or "none"
