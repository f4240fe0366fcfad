"""Entities in texts: by labels that come with the request, or by those that the model was trained for."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Unpack
from weakref import WeakKeyDictionary

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest
from headrace.ops.value import Array
from headrace.tasks.entity_finders.finder import Finder, Frame, Units
from headrace.tasks.entity_finders.gliner import GlinerFinder
from headrace.tasks.entity_finders.gliner2 import Gliner2Finder
from headrace.tasks.entity_finders.search import EntityKeywords, Search
from headrace.tasks.entity_finders.spans import Candidates, Span, choose_spans, joined
from headrace.tasks.entity_finders.tagger import TaggerFinder, without_blanks
from headrace.tasks.entity_finders.token_classifier import classified_entities
from headrace.tasks.entity_windows import LongTexts, TextLimits, pieces
from headrace.tasks.task_limits import WindowBudget, check_labels, check_texts
from headrace.tasks.token_labels import TokenEntity
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gliner2_head import is_gliner2
from headrace.weights.gliner_head import is_gliner

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_TOKENS_AT_A_TIME = 1 << 15
"""Tokens whose states are in memory together: 128 MB of a model with 1,024 numbers each."""


class Entity(Struct, frozen=True):
    """Characters [start, end) of a text; `score` in (0, 1)."""

    start: int
    end: int
    label: str
    text: str
    score: float


class _Piece(Struct, frozen=True):
    """Part of the text `index`, from its unit `first` on."""

    index: int
    first: int
    units: Units


async def extract_entities(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    labels: Sequence[str] | None,
    call: CallContext,
    **keywords: Unpack[EntityKeywords],
) -> list[list[Entity]]:
    """Of each text its entities in order, with a tagger, a GLiNER checkpoint or a token classifier.

    `labels` are words of your own; None: those of the model, for one that was trained for certain labels.
    `name` None is the first model that finds entities. Keywords are the fields of `Search`.

    Raises InvalidRequest for arguments that mean nothing, ContextLengthExceeded for long texts,
    NumericalError where the model's scores are not numbers, and what `ModelRunner.lease` and `rows` do.
    """
    search = Search(**keywords)
    check_texts(texts, "input")
    if labels is not None:
        check_labels(labels)
    async with runner.lease(name, call, "entities", "token_classify") as model:
        if "token_classify" in model.tasks:
            classified = await classified_entities(runner, model, texts, labels, search, call)
            return await runner.in_thread(model, lambda: list(map(_of_tokens, texts, classified)))
        if labels is None:
            raise InvalidRequest(
                f"{model.name} finds entities of any label: give labels, such as ['person', 'city']",
                param="labels",
            )
        if search.aggregation is not None:
            call.warn("aggregation", f"{model.name} scores whole entities: there is nothing to aggregate")
        return await _by_labels(runner, model, texts, labels, search, call)


def _of_tokens(text: str, found: Sequence[TokenEntity]) -> list[Entity]:
    places = [without_blanks(text, one.start, one.end) for one in found]
    return [
        Entity(start, end, one.label, text[start:end], one.score)
        for one, (start, end) in zip(found, places, strict=True)
        if start < end
    ]


async def _by_labels(
    runner: ModelRunner,
    model: LoadedModel,
    texts: Sequence[str],
    labels: Sequence[str],
    search: Search,
    call: CallContext,
) -> list[list[Entity]]:
    finder = await runner.in_thread(model, lambda: finder_of(model))
    write = partial(_written, finder, model, texts, labels, search.long_texts, call)
    frame, read = await runner.in_thread(model, write)
    found: list[Candidates] = []
    for part in _in_portions(read, len(frame.before) + len(frame.after)):
        rows = await runner.rows(_request(model, frame, part, search), call)
        found += await runner.in_thread(model, partial(_find, finder, frame, part, search, rows))
    return await runner.in_thread(model, lambda: _entities(texts, labels, read, found, search))


def _request(model: LoadedModel, frame: Frame, part: Sequence[_Piece], search: Search) -> EmbeddingRequest:
    return EmbeddingRequest(
        id=new_id(),
        model=model.name,
        inputs=tuple((*frame.before, *one.units.ids, *frame.after) for one in part),
        task="entities",
        priority=search.priority,
        deadline_s=search.deadline_s,
    )


_FINDERS: WeakKeyDictionary[Tokenizer, Finder] = WeakKeyDictionary()
_LOCK = threading.Lock()


def finder_of(model: LoadedModel) -> Finder:
    """What reads labels and scores spans for a loaded model, made at its first use and kept as long as its
    tokenizer. Raises UnsupportedModel, CorruptFile for a head that cannot be used."""
    with _LOCK:
        found = _FINDERS.get(model.tokenizer)
        if found is None:
            found = _FINDERS[model.tokenizer] = _new_finder(model)
        return found


def _new_finder(model: LoadedModel) -> Finder:
    size = model.engine.limits.embedding_size
    if is_gliner(model.folder):
        return GlinerFinder(model.folder, size)
    if is_gliner2(model.folder):
        return Gliner2Finder(model.folder, size)
    return TaggerFinder(model.folder)


def _written(
    finder: Finder,
    model: LoadedModel,
    texts: Sequence[str],
    labels: Sequence[str],
    long: LongTexts,
    call: CallContext,
) -> tuple[Frame, list[_Piece]]:
    frame = finder.frame(model.tokenizer, labels)
    around = len(frame.before) + len(frame.after)
    limits = TextLimits(model.context_length - around, around, finder.most_units, finder.window)
    if limits.tokens < 1:
        raise InvalidRequest(
            f"the {len(labels):,} labels have {around:,} tokens, the model reads {model.context_length:,}"
            " with the text: give fewer or shorter ones",
            param="labels",
        )
    found, budget = list[_Piece](), WindowBudget()
    for index, text in enumerate(texts):
        units = finder.units(model.tokenizer, text)
        found += [
            _Piece(index, first, units.part(first, end))
            for first, end in pieces(units, index, limits, long, call, budget)
        ]
    return frame, found


def _in_portions(read: Sequence[_Piece], around: int) -> Iterator[list[_Piece]]:
    part, tokens = list[_Piece](), 0
    for piece in read:
        size = len(piece.units.ids) + around
        if part and tokens + size > _TOKENS_AT_A_TIME:
            yield part
            part, tokens = [], 0
        part.append(piece)
        tokens += size
    if part:
        yield part


def _find(
    finder: Finder, frame: Frame, part: Sequence[_Piece], search: Search, states: Sequence[Array]
) -> list[Candidates]:
    units = [piece.units for piece in part]
    found = finder.find(states, frame, units, search.least, every_label=search.multi_label)
    return [one.moved(piece.first) for one, piece in zip(found, part, strict=True)]


def _entities(
    texts: Sequence[str],
    labels: Sequence[str],
    read: Sequence[_Piece],
    found: Sequence[Candidates],
    search: Search,
) -> list[list[Entity]]:
    """Of each text what remains of the candidates of all its pieces."""
    of_text: dict[int, list[Candidates]] = {}
    characters: dict[int, dict[int, tuple[int, int]]] = {}
    for piece, candidates in zip(read, found, strict=True):
        of_text.setdefault(piece.index, []).append(candidates)
        places = characters.setdefault(piece.index, {})
        places.update(enumerate(piece.units.characters, piece.first))
    entities: list[list[Entity]] = [[] for _ in texts]
    for index, candidates in of_text.items():
        spans = choose_spans(joined(candidates), flat=search.flat_ner, every_label=search.multi_label)
        all_found = [_entity(texts[index], characters[index], span, labels) for span in spans]
        named = [one for one in all_found if one.text]  # not white space alone
        if search.flat_ner:
            named = _apart(named, multi_label=search.multi_label)
        entities[index] = named
    return entities


def _entity(text: str, places: dict[int, tuple[int, int]], span: Span, labels: Sequence[str]) -> Entity:
    start, end = places[span.first][0], places[span.last][1]
    return Entity(start, end, labels[span.label], text[start:end], span.score)


def _apart(entities: Iterable[Entity], *, multi_label: bool) -> list[Entity]:
    """Drop the less likely of two entities that share a character (tokens of partial UTF-8 characters can);
    with `multi_label` the same characters may have several labels."""
    kept: list[Entity] = []
    for entity in entities:
        last = kept[-1] if kept else None
        if last is None or last.end <= entity.start:
            kept.append(entity)
        elif multi_label and (last.start, last.end) == (entity.start, entity.end):
            if last.label != entity.label:
                kept.append(entity)
        else:
            kept[-1] = max(last, entity, key=lambda one: one.score)
    return kept
