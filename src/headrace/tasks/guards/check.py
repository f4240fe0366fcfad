"""What a guard says of a text."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

from headrace.inference.call_context import CallContext
from headrace.inference.events import GuardVerdict
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.classify import classify
from headrace.tasks.guards.readings import readings
from headrace.tasks.guards.schema import SchemaCheck
from headrace.tasks.guards.settings import GuardSettings, Stage
from headrace.tasks.guards.topics import TopicClassifiers
from headrace.tasks.label_scores import Classification
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.redaction import Redacted, Redactor
from headrace.weights.hub.bundled import bundled_guards
from headrace.weights.ngram_classifier import read_ngram_classifier

T = TypeVar("T")
Found = tuple[str, float]
"""A label and its score."""
PIECE_CHARACTERS, MAX_SPLIT = 1000, 16_384
MIN_PART = 40
"""Characters of a line or sentence that is read by itself: of shorter ones a text has thousands."""
_END = re.compile(r"(?<=[.!?])\s+|\n+")
QUICK_CHARACTERS = 512
"""Longer texts are searched in a thread: a thousand characters take all patterns 2 ms, and 20 ms where they
are digits."""


def redactor_of(name: str, guard: GuardSettings) -> Redactor:
    """What finds, and replaces by placeholders, what a guard of patterns is about."""
    return Redactor(guard.analyzer(name))


class GuardChecks:
    """Checks texts with guards; `runner` runs their models, without guards."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self._topics = runner, TopicClassifiers(runner)

    async def check(
        self,
        guards: Mapping[str, GuardSettings],
        text: str,
        stage: Stage,
        call: CallContext,
        before: str = "",
        redactors: Mapping[str, Redactor] | None = None,
    ) -> tuple[str, list[GuardVerdict]]:
        """The text, redacted where a guard says so, and the verdicts of those that have found something.

        `before` was checked and stands before the text: what is found in both together counts where the text
        has a part in it. `redactors` are those of guards that redact, where several texts share placeholders.
        Guards of schemas read whole answers, see `check_whole`.
        """
        verdicts: list[GuardVerdict] = []
        for name, guard in guards.items():
            if not guard.reads(stage) or guard.kind == "schema" or not text.strip():
                continue
            if guard.action == "redact":
                done = await redacted((redactors or {}).get(name) or redactor_of(name, guard), text)
                found = _best((one.label, one.score) for one in done.entities)
                text = done.text
            elif guard.kind == "words":
                found = await _by_words(name, guard, text, before)
            elif guard.kind in ("pii", "regex"):
                found = await _matched(name, guard, text, before)
            else:
                found = await self._judged(name, guard, text, before, call)
            if found is not None:
                verdicts.append(GuardVerdict(name, stage, guard.action, *found))
                if guard.action == "block":
                    break
        return text, verdicts

    def check_whole(self, guards: Mapping[str, GuardSettings], answer: str) -> list[GuardVerdict]:
        """The verdicts of guards of schemas on a whole answer."""
        verdicts: list[GuardVerdict] = []
        for name, guard in guards.items():
            if guard.kind == "schema" and (problem := SchemaCheck(name, guard.schema).problem(answer)):
                verdicts.append(GuardVerdict(name, "output", guard.action, problem, 1.0))
        return verdicts

    async def _judged(
        self, name: str, guard: GuardSettings, text: str, before: str, call: CallContext
    ) -> Found | None:
        """What a model says of the text alone and of the text with what stands before: neither a harmless
        beginning nor a cut hides it."""
        several = readings(text)
        if before.strip():
            several.append(before + text)
        found = [await self._judge(name, guard, one, call) for one in several if one.strip()]
        return _best(one for one in found if one is not None)

    async def _judge(self, name: str, guard: GuardSettings, text: str, call: CallContext) -> Found | None:
        """Long texts are cut, with a warning."""
        own = call.nested("guard", background=call.background)
        if guard.kind == "topics":
            one = await self._topics.topic(name, guard, text, own)
            found = _sum(one, guard)
        else:
            [one] = await classify(self._runner, guard.model, [text], own, truncate=True)
            found = _best(
                (label, score)
                for label, score in zip(one.labels, one.scores, strict=True)
                if label in guard.labels
            )
            if found is None:
                own.warn(
                    "guards",
                    f"none of the labels {', '.join(guard.labels)} is one of the model's:"
                    f" {', '.join(one.labels)}",
                )
        call.warnings += [one for one in own.warnings if one not in call.warnings]
        return found if found is not None and found[1] >= guard.least else None


def _sum(topics: Classification, guard: GuardSettings) -> Found:
    """The likeliest topic that is unwanted, with the probability of all that are."""
    scores = dict(zip(topics.labels, topics.scores, strict=True))
    unwanted = guard.unwanted
    return max(unwanted, key=scores.__getitem__), min(1.0, sum(scores[one] for one in unwanted))


async def redacted(redactor: Redactor, text: str) -> Redacted:
    """What a guard of patterns makes of a text. Other requests get their turn after each."""
    return await in_thread_if_long(lambda: redactor.redact(text), len(text))


async def _matched(name: str, guard: GuardSettings, text: str, before: str) -> Found | None:
    """The best match of patterns in all ways to read the text, but for those that were there before."""
    analyzer = redactor_of(name, guard).analyzer

    def search() -> Found | None:
        found = Counter(_matches(analyzer, before + text))
        if found and before:
            found -= Counter(_matches(analyzer, before))
        return _best((label, score) for label, _, score in found)

    return await in_thread_if_long(search, len(before) + len(text))


async def _by_words(name: str, guard: GuardSettings, text: str, before: str) -> Found | None:
    """The score of the guard's name by the classifier that ships, in all ways to read the text, and piece by
    piece: a harmless beginning does not hide what follows."""
    classifier = read_ngram_classifier(bundled_guards()[name])

    def search() -> Found | None:
        several = [one for reading in readings(text) for one in pieces(reading)]
        if before.strip():
            several.append((before + text)[-PIECE_CHARACTERS:])
        score = max((classifier.scores(one)[name] for one in several), default=0.0)
        return (name, score) if score >= guard.least else None

    return await in_thread_if_long(search, len(before) + len(text))


def pieces(text: str) -> list[str]:
    """The text in overlapping parts of PIECE_CHARACTERS; up to MAX_SPLIT characters also each of its lines
    and sentences, short ones together, and each two of these in a row."""
    parts = [] if len(text) > MAX_SPLIT else list(_parts(text))
    several = [*parts, *(f"{one} {other}" for one, other in pairwise(parts)), text]
    return [
        one[start : start + PIECE_CHARACTERS]
        for one in several
        for start in range(0, len(one), PIECE_CHARACTERS // 2)
    ]


def _parts(text: str) -> Iterator[str]:
    """Lines and sentences; those shorter than MIN_PART go with the next."""
    held = ""
    for one in filter(str.strip, _END.split(text)):
        held = f"{held} {one}" if held else one
        if len(held) >= MIN_PART:
            yield held
            held = ""
    if held:
        yield held


async def in_thread_if_long(search: Callable[[], T], characters: int) -> T:
    """What a search of so many characters finds. Other requests get their turn after a short one, too."""
    if characters > QUICK_CHARACTERS:
        return await asyncio.to_thread(search)
    await asyncio.sleep(0)
    return search()


def _matches(analyzer: Analyzer, text: str) -> Iterable[tuple[str, str, float]]:
    """Label, matched text and score of all matches in all ways to read a text."""
    for one in readings(text):
        for match in analyzer.find(one):
            yield match.label, one[match.start : match.end], match.score


def _best(found: Iterable[Found]) -> Found | None:
    return max(found, key=lambda one: one[1], default=None)
