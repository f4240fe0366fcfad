"""What the small model and the student make of recorded requests, and where that is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.economy.levers import LeverCall
from headrace.economy.savings.models import large_prompt, small_prompt
from headrace.economy.savings.playing import PlayedRequest, embedded, play_at_once
from headrace.economy.savings.traffic import LABEL, SQL, RecordedRequest
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.sampling.params import SamplingParams
from headrace.tasks.few_shot import fit

NEAR_SIMILARITY = 0.9  # cosine from which an earlier answer is the draft
ANSWER_TOKENS = 48


class Certified(Struct, frozen=True, kw_only=True):
    """From `threshold` on, at most `upper` of the answers are wrong, with 95 % confidence, by the labels of
    `answered` of `labeled` requests of the history, of which `wrong` were wrong."""

    threshold: float
    labeled: int
    answered: int
    wrong: int
    upper: float


Certify = Callable[[Sequence[float], Sequence[bool], Sequence[float]], Certified | None]
"""By scores of labeled requests, whether their answers were wrong, and scores of others whose labels nothing
knows, which choose the thresholds that are tried; None where nothing is certified."""


class Judged(Struct, frozen=True, kw_only=True):
    """Answers of a cheap model to requests of one kind: scores, and whether each is wrong, of the history,
    where every request counts once, and of the traffic; `places` are those of the traffic's requests.

    Labels of the same request say the same: to count it several times would certify too much. `is_new` are
    those of the traffic that neither the history nor the traffic before them has."""

    history_scores: tuple[float, ...]
    history_wrong: tuple[bool, ...]
    places: tuple[int, ...]
    scores: tuple[float, ...]
    wrong: tuple[bool, ...]
    is_new: tuple[bool, ...]

    def certified(self, certify: Certify) -> Certified | None:
        """By the labels of the history and the scores of the traffic."""
        if not self.history_scores or not self.scores:
            return None
        return certify(self.history_scores, self.history_wrong, self.scores)

    def answered(self, certified: Certified | None) -> list[int]:
        """Which of `places` have a certified score, by index."""
        if certified is None:
            return []
        return [index for index, score in enumerate(self.scores) if score >= certified.threshold]


class SmallAnswers(Struct, frozen=True, kw_only=True):
    """Of the traffic's requests for the small model: prompts, answers, and the near answers, () where there
    is none. By place in the traffic."""

    prompts: dict[int, tuple[int, ...]]
    answers: dict[int, tuple[int, ...]]
    near: dict[int, tuple[int, ...]]


def is_right(request: RecordedRequest, text: str) -> bool:
    """Whether an answer is the recorded one, but for case, quotes of names and spaces."""
    return _plain(text) == _plain(request.answer)


def _plain(text: str) -> str:
    return " ".join(text.lower().replace('"', "").split())


def answer_all(small: LoadedModel, requests: Sequence[RecordedRequest]) -> list[PlayedRequest]:
    """Greedy answers of the small model with their log-probabilities."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, logprobs=0)
    return play_at_once(
        small, [EngineRequest(prompt=small_prompt(small, one), params=params) for one in requests]
    )


def judged_small(
    small: LoadedModel, history: Sequence[RecordedRequest], traffic: Sequence[RecordedRequest]
) -> tuple[Judged, dict[int, PlayedRequest]]:
    """The small model on the requests for SQL; and its answers by place in the traffic."""
    places = [place for place, one in enumerate(traffic) if one.kind == SQL]
    known = distinct([one for one in history if one.kind == SQL])
    before, now = answer_all(small, known), answer_all(small, [traffic[place] for place in places])
    judged = Judged(
        history_scores=tuple(one.mean_logprob for one in before),
        history_wrong=tuple(not is_right(*both) for both in _pairs(known, before)),
        places=tuple(places),
        scores=tuple(one.mean_logprob for one in now),
        wrong=tuple(not is_right(*both) for both in _pairs([traffic[place] for place in places], now)),
        is_new=unseen(known, [traffic[place] for place in places]),
    )
    return judged, dict(zip(places, now, strict=True))


def _key(request: RecordedRequest) -> tuple[str, str]:
    return request.instruction, request.prompt


def distinct(requests: Sequence[RecordedRequest]) -> list[RecordedRequest]:
    """Each request once, the first time."""
    kept: dict[tuple[str, str], RecordedRequest] = {}
    for one in requests:
        kept.setdefault(_key(one), one)
    return list(kept.values())


def unseen(known: Sequence[RecordedRequest], requests: Sequence[RecordedRequest]) -> tuple[bool, ...]:
    """Which requests were not seen before."""
    seen, found = {_key(one) for one in known}, list[bool]()
    for one in requests:
        found.append(_key(one) not in seen)
        seen.add(_key(one))
    return tuple(found)


def _pairs(
    requests: Sequence[RecordedRequest], played: Sequence[PlayedRequest]
) -> list[tuple[RecordedRequest, str]]:
    return [(request, one.text) for request, one in zip(requests, played, strict=True)]


def judged_student(
    encoder: LoadedModel, history: Sequence[RecordedRequest], traffic: Sequence[RecordedRequest]
) -> Judged:
    """A logistic regression on vectors of the encoder, trained on the first half of the labeled history; the
    other half is what certifies."""
    places = [place for place, one in enumerate(traffic) if one.kind == LABEL]
    known = distinct([one for one in history if one.kind == LABEL])
    trained, rest = known[: len(known) // 2], known[len(known) // 2 :]
    if len({one.answer for one in trained}) < 2 or not rest or not places:
        return Judged(history_scores=(), history_wrong=(), places=(), scores=(), wrong=(), is_new=())
    head = fit(embedded(encoder, [one.prompt for one in trained]), [one.answer for one in trained])

    def scored(requests: Sequence[RecordedRequest]) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        found = head.classify(embedded(encoder, [one.prompt for one in requests]))
        wrong = [one.label != request.answer for one, request in zip(found, requests, strict=True)]
        return tuple(max(one.scores) for one in found), tuple(wrong)

    before, now = scored(rest), scored([traffic[place] for place in places])
    return Judged(
        history_scores=before[0],
        history_wrong=before[1],
        places=tuple(places),
        scores=now[0],
        wrong=now[1],
        is_new=unseen(known, [traffic[place] for place in places]),
    )


def near_answers(
    encoder: LoadedModel, traffic: Sequence[RecordedRequest], answers: dict[int, PlayedRequest]
) -> dict[int, tuple[int, ...]]:
    """For each place the tokens of the answer to the nearest earlier request that is not the same, () where
    none is near."""
    places = sorted(answers)
    if not places:
        return {}
    vectors = embedded(encoder, [traffic[place].prompt for place in places])
    found: dict[int, tuple[int, ...]] = {}
    for index, place in enumerate(places):
        scores: NDArray[np.float32] = vectors[:index] @ vectors[index]
        best = int(scores.argmax()) if index else 0
        is_near = bool(index) and float(scores[best]) >= NEAR_SIMILARITY
        found[place] = tuple(answers[places[best]].tokens) if is_near else ()
    return found


def lever_calls(
    small: LoadedModel,
    traffic: Sequence[RecordedRequest],
    answers: dict[int, PlayedRequest],
    near: dict[int, tuple[int, ...]],
    by_small: set[int],
    by_student: set[int],
) -> list[LeverCall]:
    """The traffic as the simulator and the engine take it."""
    found: list[LeverCall] = []
    repeats = repeated(traffic)
    for place, one in enumerate(traffic):
        output = len(small.tokenizer.encode(one.answer, add_special=False)) + 1 if one.answer else 0
        found.append(
            LeverCall(
                at_s=one.at_s,
                kind=one.kind,
                prompt=large_prompt(small, one),
                output=output or one.output_tokens,
                small_prompt=small_prompt(small, one) if place in answers else (),
                small_output=len(answers[place].tokens) if place in answers else 0,
                repeats=repeats[place],
                is_near=bool(near.get(place)),
                by_small=place in by_small,
                by_student=place in by_student,
            )
        )
    return found


def repeated(traffic: Sequence[RecordedRequest]) -> list[bool]:
    """Which requests the exact cache has the answer of: those with a fixed one that came before, as the keys
    of `gateway/response_key.py` have it."""
    seen: set[tuple[str, str]] = set()
    found: list[bool] = []
    for one in traffic:
        key = _key(one)
        found.append(key in seen and not one.sampled)
        if not one.sampled:
            seen.add(key)
    return found
