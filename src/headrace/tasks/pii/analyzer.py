"""Personal data in texts, by recognizers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from headrace.config.names import nearest
from headrace.errors import InvalidRequest
from headrace.tasks.entities import Entity
from headrace.tasks.pii.blocks import marked
from headrace.tasks.pii.custom import MAX_RECOGNIZERS, CustomRecognizer
from headrace.tasks.pii.folding import Folded, fold, places_of_bytes
from headrace.tasks.pii.recognizer import (
    CONTEXT_CHARACTERS,
    Recognizer,
    RecognizerResult,
    boosted,
    bundled_recognizers,
)

THRESHOLD = 0.4
MAX_CONTEXT_CHARACTERS = 1000
"""Of all words of context together, which are looked at once for every match."""
MODEL_LABELS = {
    "PERSON": "person",
    "LOCATION": "location",
    "ORGANIZATION": "organization",
    "NRP": "nationality, religious or political group",
}
"""Entities that models find, by the words that a tagger is asked for."""


def supported_entities() -> list[str]:
    """The entities of all bundled recognizers, in their order."""
    return list(dict.fromkeys(one.entity for one in bundled_recognizers()))


class Analyzer:
    """Finds entities in texts by patterns: those of `entities` (None: all), with a score from `threshold`.

    `custom` are further recognizers. What equals a text of `allow` is none. `context` are words that count
    as if they stood before every match. InvalidRequest for entities that only models find, unless
    `with_model` says that one is asked, too.
    """

    def __init__(
        self,
        entities: Collection[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        custom: Sequence[CustomRecognizer] = (),
        allow: Collection[str] = (),
        context: Sequence[str] = (),
        with_model: bool = False,
    ) -> None:
        if not (math.isfinite(threshold) and 0 <= threshold <= 1):
            raise InvalidRequest(f"threshold is {threshold}, it must be between 0 and 1", param="threshold")
        if len(custom) > MAX_RECOGNIZERS:
            raise InvalidRequest(
                f"{len(custom):,} recognizers, at most {MAX_RECOGNIZERS} are used", param="ad_hoc_recognizers"
            )
        wanted = None if entities is None else frozenset(entities)
        known = [*supported_entities(), *MODEL_LABELS, *(one.entity for one in custom)]
        check_entities(wanted or (), known)
        if wanted is not None and not wanted:
            raise InvalidRequest(
                "entities is empty, so that nothing is found: leave it out for all", param="entities"
            )
        self.known, self.with_model = known, with_model
        if not with_model:
            _refuse_names((wanted or frozenset()).difference(one.entity for one in custom))
        bundled = bundled_recognizers()
        self.bundled = [one for one in bundled if wanted is None or one.entity in wanted]
        self.custom = [one for one in custom if wanted is None or one.entity in wanted]
        self.threshold, self.allow = threshold, frozenset(allow)
        self._context = " ".join(context)
        if len(self._context) > MAX_CONTEXT_CHARACTERS:
            raise InvalidRequest(
                f"context has {len(self._context):,} characters, at most {MAX_CONTEXT_CHARACTERS:,} are read",
                param="context",
            )

    def find(self, text: str) -> list[RecognizerResult]:
        """All findings, which may overlap."""
        folded = fold(text)
        found = [*self.in_blocks(folded), *self.in_text(folded)]
        return [one for one in found if text[one.start : one.end] not in self.allow]

    def in_blocks(self, folded: Folded, before: str = "") -> Iterator[RecognizerResult]:
        """Findings of bundled recognizers. `before` is folded text that stands before."""
        return self._found(self.bundled, folded, marked(folded.text), before)

    def in_text(self, folded: Folded, before: str = "") -> Iterator[RecognizerResult]:
        """Findings of custom recognizers, which may match across blocks."""
        return self._found(self.custom, folded, folded.text, before)

    def _found(
        self,
        recognizers: Sequence[Recognizer] | Sequence[CustomRecognizer],
        folded: Folded,
        text: str,
        before: str,
    ) -> Iterator[RecognizerResult]:
        data = text.encode()
        places = places_of_bytes(text, data)
        for recognizer in recognizers:
            for hit in recognizer.hits(data):
                start, end = hit.start, hit.end
                if places is not None:
                    start, end = int(places[start]), int(places[end])
                context, score = None, hit.score
                if score < 1 and boosted(score, "") >= self.threshold:
                    context = recognizer.context_word(self._before(folded.text, start, before))
                    score = boosted(score, context)
                if score >= self.threshold and score > 0:
                    start, end = folded.span(start, end)
                    valid = True if recognizer.has_check else None
                    yield RecognizerResult(
                        start,
                        end,
                        recognizer.entity,
                        score,
                        recognizer.name,
                        hit.pattern,
                        hit.score,
                        valid,
                        context,
                    )

    def _before(self, text: str, start: int, before: str) -> str:
        near = text[max(0, start - CONTEXT_CHARACTERS) : start]
        if len(near) < CONTEXT_CHARACTERS and before:
            near = before[len(near) - CONTEXT_CHARACTERS :] + near
        return f"{self._context} {near}" if self._context else near


def check_entities(entities: Collection[str], known: Collection[str]) -> None:
    """InvalidRequest for an entity that nothing finds."""
    for entity in entities:
        if entity not in known:
            raise InvalidRequest(
                f"unknown entity {entity[:80]!r}{nearest(entity[:80], list(known))}: GET /supportedentities"
                " lists what is found",
                param="entities",
            )


def _refuse_names(entities: Collection[str]) -> None:
    """InvalidRequest for an entity that no pattern finds."""
    for entity, word in MODEL_LABELS.items():
        if entity in entities:
            raise InvalidRequest(
                f"{entity} ({word}) is found by models, not by patterns: name a model that finds entities,"
                " such as tagger",
                param="entities",
            )


def as_entities(text: str, findings: Sequence[RecognizerResult]) -> list[Entity]:
    """Findings with the text that they are."""
    return [Entity(one.start, one.end, one.label, text[one.start : one.end], one.score) for one in findings]
