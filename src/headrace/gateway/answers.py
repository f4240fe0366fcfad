"""Whole answers: how sure a model was of one, and whether two say the same."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

from headrace.config.providers import CompareName, ScoreName
from headrace.inference.events import TokenText
from headrace.inference.requests import GenerationRequest
from headrace.inference.result import ChoiceResult

LEAST_COMMON = 0.8
"""F1 of the words of two texts that count as the same by "words"."""
TOP = {"logprob": 0, "least": 0, "margin": 2}
"""Log-probabilities of other tokens that a score needs."""


def score_of(choice: ChoiceResult, score: ScoreName) -> float | None:
    """How sure the model was, by the log-probabilities of its tokens; None where it cannot be told. Higher is
    surer. The verifier's score is no matter of tokens."""
    tokens = [one for one in choice.logprobs if not one.special]
    if not tokens or score == "verifier":
        return None
    if score == "margin":
        values = [_lead(one) for one in tokens]
    else:
        values = [one.logprob for one in tokens]
    if not all(math.isfinite(one) for one in values):
        return None
    return math.fsum(values) / len(values) if score == "logprob" else min(values)


def _lead(token: TokenText) -> float:
    """How much likelier it was than the likeliest other one."""
    others = [one.logprob for one in token.top if one.token != token.token or one.bytes != token.bytes]
    return token.logprob - max(others) if others else math.nan


def same(one: ChoiceResult, other: ChoiceResult, request: GenerationRequest, compare: CompareName) -> bool:
    """Whether two answers say the same. Calls and whatever a request holds to a form must be equal."""
    first, second = one.output, other.output
    if first.calls or second.calls:
        called = [[(call.name, _value(call.arguments)) for call in out.calls] for out in (first, second)]
        return called[0] == called[1]
    if request.constraint is not None:
        return _value(first.content) == _value(second.content)
    return same_text(first.content, second.content, compare)


def same_text(one: str, other: str, compare: CompareName) -> bool:
    """Whether two free texts count as the same."""
    if compare == "equal":
        return one.strip() == other.strip()
    words, others = one.casefold().split(), other.casefold().split()
    return words == others if compare == "normalized" else _f1(words, others) >= LEAST_COMMON


def _f1(words: Sequence[str], others: Sequence[str]) -> float:
    if not words or not others:
        return float(words == others)
    return 2 * (Counter(words) & Counter(others)).total() / (len(words) + len(others))


def _value(text: str) -> object:
    """JSON as a value, other texts as they are. 1 is not true, and 1.0 is 1."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()
