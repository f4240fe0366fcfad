"""What the kept measurements say: medians over a time, as Artificial Analysis publishes them."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from headrace.providers.probe.sample import CanarySample, QualitySample, SpeedSample
from headrace.storage.probes import ProbeRow, Probes

WINDOW_S = 72 * 3600
LONG_WINDOW_S = 14 * 86_400
LONG_TOKENS = 100_000
"""Prompts from this length on are measured rarely, and judged over the longer window."""
ANSWER_TOKENS = 500
"""The answer whose time is compared between endpoints of different speed."""
TOKEN_TOLERANCE = 0.02
KINDS: Mapping[str, Any] = {"speed": SpeedSample, "quality": QualitySample, "canary": CanarySample}


class SpeedSummary(Struct, frozen=True, kw_only=True):
    """Medians of a length and load. Seconds; `answer_s` is the time of an answer of ANSWER_TOKENS tokens
    with the reasoning before it. `errors` counts failures by kind."""

    prompt_tokens: int
    parallel: int
    samples: int
    errors: Mapping[str, int]
    first_s: float | None
    first_answer_s: float | None
    tokens_per_s: float | None
    answer_s: float | None
    total_s: float | None


class Check(Struct, frozen=True):
    """The last verdict of an honesty check; see `CanarySample`."""

    name: str
    verdict: str
    detail: str


class EndpointSummary(Struct, frozen=True, kw_only=True):
    """One endpoint. `quality` is the share of right answers, by group and of `all`. Prices are dollars per
    million tokens, `blended` those of three tokens of input to one of output; `usd` is what the probes cost.
    """

    endpoint: str
    model: str
    provider: str
    probed_s: float
    input: float | None
    output: float | None
    blended: float | None
    usd: float
    speed: tuple[SpeedSummary, ...]
    quality: Mapping[str, float]
    checks: tuple[Check, ...]


class EndpointFacts(Struct, frozen=True, kw_only=True):
    """What an endpoint was when it was probed: kept with the measurements, as kind "endpoint"."""

    model: str
    provider: str
    input: float
    output: float


def kind_of(sample: SpeedSample | QualitySample | CanarySample) -> str:
    """Under which kind a sample is kept."""
    return next(name for name, kind in KINDS.items() if isinstance(sample, kind))


def summaries(probes: Probes, now_s: float, names: Sequence[str] | None = None) -> list[EndpointSummary]:
    """Of each endpoint with measurements, or of those named, by name."""
    by_name: dict[str, list[ProbeRow]] = defaultdict(list)
    for row in probes.since(now_s - LONG_WINDOW_S):
        if names is None or row.endpoint in names:
            by_name[row.endpoint].append(row)
    return [_summary(name, rows, now_s) for name, rows in sorted(by_name.items())]


def speed_rows(rows: Sequence[ProbeRow]) -> list[tuple[float, SpeedSample]]:
    """The speed samples, with their times."""
    return [
        (row.at_s, msgspec.json.decode(row.body, type=SpeedSample)) for row in rows if row.kind == "speed"
    ]


def _summary(name: str, rows: Sequence[ProbeRow], now_s: float) -> EndpointSummary:
    recent = [row for row in rows if row.at_s >= now_s - WINDOW_S]
    facts = [msgspec.json.decode(row.body, type=EndpointFacts) for row in rows if row.kind == "endpoint"]
    last = facts[-1] if facts else None
    speeds = [
        one for at_s, one in speed_rows(rows) if one.prompt_tokens >= LONG_TOKENS or at_s >= now_s - WINDOW_S
    ]
    quality = _decoded(recent, "quality", QualitySample)
    canaries = _decoded(rows, "canary", CanarySample)
    return EndpointSummary(
        endpoint=name,
        model="" if last is None else last.model,
        provider="" if last is None else last.provider,
        probed_s=rows[-1].at_s,
        input=None if last is None else last.input,
        output=None if last is None else last.output,
        blended=None if last is None else (3 * last.input + last.output) / 4,
        usd=sum(one.usd for one in (*speeds, *quality, *canaries)),
        speed=tuple(_speeds(speeds)),
        quality=_quality(quality),
        checks=(*_checks(canaries), *_head(speeds), *_tokens(speeds)),
    )


def _decoded(rows: Sequence[ProbeRow], kind: str, form: type[Any]) -> list[Any]:
    return [msgspec.json.decode(row.body, type=form) for row in rows if row.kind == kind]


def _speeds(samples: Sequence[SpeedSample]) -> list[SpeedSummary]:
    groups: dict[tuple[int, int], list[SpeedSample]] = defaultdict(list)
    for one in samples:
        groups[one.prompt_tokens, one.parallel].append(one)
    return [_speed(*key, groups[key]) for key in sorted(groups)]


def _speed(length: int, load: int, samples: Sequence[SpeedSample]) -> SpeedSummary:
    good = [one for one in samples if one.failure is None]
    speed = _median([one.tokens_per_s for one in good])
    answer_s = _median([one.first_answer_s for one in good])
    return SpeedSummary(
        prompt_tokens=length,
        parallel=load,
        samples=len(samples),
        errors=dict(Counter(one.failure for one in samples if one.failure is not None)),
        first_s=_median([one.first_s for one in good]),
        first_answer_s=answer_s,
        tokens_per_s=speed,
        answer_s=None if speed is None or answer_s is None else answer_s + ANSWER_TOKENS / speed,
        total_s=_median([one.total_s for one in good]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.median(known) if known else None


def _quality(samples: Sequence[QualitySample]) -> dict[str, float]:
    """Items that could not be asked count as neither right nor wrong."""
    answered = [one for one in samples if one.failure is None]
    groups: dict[str, list[bool]] = defaultdict(list)
    for one in answered:
        groups[one.group].append(one.right)
        groups["all"].append(one.right)
    return {name: sum(right) / len(right) for name, right in groups.items()}


def _checks(samples: Sequence[CanarySample]) -> list[Check]:
    by_name: dict[str, list[CanarySample]] = defaultdict(list)
    for one in samples:
        by_name[one.canary].append(one)
    return [
        _drift(found) if name == "drift" else Check(name, found[-1].verdict, found[-1].detail)
        for name, found in by_name.items()
    ]


def _drift(samples: Sequence[CanarySample]) -> Check:
    """Whether the greedy answer is that of the probe before."""
    digests = [one.detail for one in samples if one.verdict == "ok"]
    if len(digests) < 2:
        return Check("drift", "unknown", "needs two probes")
    changes = sum(a != b for a, b in pairwise(digests))
    if not changes:
        return Check("drift", "ok", "")
    return Check("drift", "broken", f"the greedy answer changed {changes:,} times in {len(digests):,} probes")


def _head(samples: Sequence[SpeedSample]) -> list[Check]:
    """Whether the first line of long prompts is read, where that of shorter ones is."""
    seen: dict[int, list[bool]] = defaultdict(list)
    for one in samples:
        if one.failure is None:
            seen[one.prompt_tokens].append(one.head_seen)
    shares = {length: sum(found) / len(found) for length, found in sorted(seen.items())}
    if not shares:
        return []
    short, *longer = shares
    if shares[short] < 0.5:
        return [Check("head", "unknown", f"the code word is in {shares[short]:.0%} of the shortest answers")]
    lost = [length for length in longer if shares[length] < shares[short] / 2]
    if lost:
        detail = f"the first line of prompts from {lost[0]:,} tokens on is not in most answers"
        return [Check("head", "broken", detail)]
    return [Check("head", "ok", "")]


def _tokens(samples: Sequence[SpeedSample]) -> list[Check]:
    """Whether prompts are billed as their tokenizer counts: the difference between two lengths, in which what
    the template adds cancels out. Answers: the tokens beside the reasoning."""
    read = [(one.own_read, one.read) for one in samples if one.own_read and one.read]
    if len({own for own, _ in read}) < 2:
        return []
    (own_low, low), (own_high, high) = min(read), max(read)
    ratio = (high - low) / (own_high - own_low)
    texts = [one for one in samples if one.own_written and one.written is not None]
    own = sum(one.own_written or 0 for one in texts)
    billed = sum((one.written or 0) - one.reasoning - 1 for one in texts)  # the end mark is billed, too
    written = billed / own if own else 1.0
    right = abs(ratio - 1) <= TOKEN_TOLERANCE and written <= 1 + 2 * TOKEN_TOLERANCE
    detail = f"billed {ratio:.3f} times the prompt's tokens, {written:.3f} times the answer's"
    return [Check("tokens", "ok" if right else "broken", detail)]
