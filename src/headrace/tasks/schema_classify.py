"""Classes of whole texts by labels of the request, by a model that reads both together (GLiNER 2)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, Truncation, as_truncation
from headrace.ops.value import Array
from headrace.tasks.entities import finder_of
from headrace.tasks.entity_finders.finder import Frame, Units
from headrace.tasks.entity_finders.gliner2 import Gliner2Finder
from headrace.tasks.label_scores import Classification, activated, best_label

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_TEXTS_AT_A_TIME = 32
"""Whose states are in memory together: 64 MB of 512 tokens each in a model with 1,024 numbers a token."""


async def schema_classify(
    runner: ModelRunner,
    model: LoadedModel,
    texts: Sequence[str],
    labels: tuple[str, ...],
    call: CallContext,
    *,
    multi_label: bool,
    truncate: bool | Truncation,
) -> list[Classification]:
    """The probability of each label for each text: of all together, or with `multi_label` of each.

    Raises ContextLengthExceeded for a text that does not fit beside the labels unless it may be cut, and
    InvalidRequest for labels that leave no room.
    """
    finder = await runner.in_thread(model, partial(finder_of, model))
    assert isinstance(finder, Gliner2Finder)
    frame = await runner.in_thread(model, partial(finder.class_frame, model.tokenizer, labels))
    room = model.context_length - len(frame.before)
    if room < 1:
        raise InvalidRequest(
            f"the {len(labels):,} labels have {len(frame.before):,} tokens, {model.name} reads"
            f" {model.context_length:,} with the text: give fewer or shorter ones",
            param="labels",
        )
    how, found = as_truncation(truncate), list[Classification]()
    for start in range(0, len(texts), _TEXTS_AT_A_TIME):
        part = texts[start : start + _TEXTS_AT_A_TIME]
        read = await runner.in_thread(
            model, lambda part=part: [finder.units(model.tokenizer, text) for text in part]
        )
        kept = [
            _fitting(units, start + place, room, finder.most_units, how, call)
            for place, units in enumerate(read)
        ]
        rows = await runner.rows(_request(model, frame, kept), call)
        logits = [finder.class_logits(states, frame) for states in rows]
        found += [best_label(_chances(one, multi_label), labels) for one in logits]
    return found


def _chances(logits: Array, multi_label: bool) -> Array:
    chances = activated(logits, "sigmoid" if multi_label else "softmax")
    return chances.astype("float32")


def _request(model: LoadedModel, frame: Frame, read: Sequence[Units]) -> EmbeddingRequest:
    inputs = tuple((*frame.before, *units.ids) for units in read)
    return EmbeddingRequest(id=new_id(), model=model.name, inputs=inputs, task="entities")


def _fitting(
    units: Units, index: int, room: int, most_units: int | None, how: Truncation | None, call: CallContext
) -> Units:
    """The words of a text that are read: all, or of a long one as many as fit where it may be cut."""
    limit = room if how is None or how.limit is None else min(room, how.limit)
    tokens, words = units.starts[-1], len(units) if most_units is None else most_units
    if tokens <= limit and len(units) <= words:
        return units
    said = f"text {index} has {len(units):,} words and {tokens:,} tokens, {limit:,} tokens are read"
    said += f" and {words:,} words" if most_units is not None else ""
    if how is None:
        raise ContextLengthExceeded(
            f"{said} beside the labels: shorten it, give fewer labels, or let it be cut (truncate)",
            param="input",
        )
    if how.side == "left":
        first = max(bisect_left(units.starts, tokens - limit), len(units) - words)
        kept = units.part(first, len(units))
    else:
        kept = units.part(0, min(bisect_right(units.starts, limit) - 1, words))
    call.warn(how.param, f"{said}: it was cut to {len(kept):,} words")
    return kept
