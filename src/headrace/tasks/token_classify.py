"""Entities by models that classify tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest
from headrace.ops.value import Array
from headrace.tasks.label_scores import activated
from headrace.tasks.token_labels import Aggregation, TokenEntity, TokenScores, merged, read_entities
from headrace.tokenization.prompts import check_characters
from headrace.tokenization.tokenizer import MarkedTokens
from headrace.weights.head import Head

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_MAX_WINDOWED_CHARACTERS = 1 << 24


class _Window(Struct, frozen=True):
    """Tokens [first, first + count) of text `index`, as the model reads them: `ids`, of which `before` are
    special tokens in front."""

    index: int
    first: int
    count: int
    before: int
    ids: tuple[int, ...]


async def token_classify(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    call: CallContext,
    *,
    aggregation: Aggregation = "simple",
    truncate: bool = False,
    stride: int | None = None,
    priority: int = 0,
    deadline_s: float | None = None,
) -> list[list[TokenEntity]]:
    """Of each text its entities in order, as a model that classifies tokens sees them.

    A text that is too long raises ContextLengthExceeded, unless it may be cut (`truncate`, with a warning) or
    is read in windows that share `stride` tokens. InvalidRequest where the model classifies no tokens, for an
    unknown aggregation and a stride that leaves nothing of a window.
    """
    if aggregation not in get_args(Aggregation):
        raise InvalidRequest(
            f"aggregation is {aggregation!r}, it must be one of {', '.join(get_args(Aggregation))}",
            param="aggregation",
        )
    async with runner.lease(name, call, "token_classify") as model:
        head = model.head
        assert head is not None
        read = await runner.in_thread(model, lambda: _read(texts, model, windowed=stride is not None))
        windows = [
            window
            for index, one in enumerate(read)
            for window in _windows(index, one, model.context_length, call, truncate, stride)
        ]
        request = EmbeddingRequest(
            id=new_id(),
            model=model.name,
            inputs=tuple(window.ids for window in windows),
            task="token_classify",
            priority=priority,
            deadline_s=deadline_s,
        )
        rows = await runner.rows(request, call)
    found: list[list[TokenEntity]] = [[] for _ in texts]
    several = [0] * len(texts)
    for window, scores in zip(windows, rows, strict=True):
        several[window.index] += 1
        tokens = _scored(texts[window.index], read[window.index], window, scores, head)
        found[window.index] += read_entities(tokens, head.labels, aggregation)
    return [merged(one) if count > 1 else one for one, count in zip(found, several, strict=True)]


def _read(texts: Sequence[str], model: LoadedModel, *, windowed: bool) -> list[MarkedTokens]:
    for text in texts:
        if not windowed:
            check_characters(text, model.context_length, "input")
        elif len(text) > _MAX_WINDOWED_CHARACTERS:
            raise ContextLengthExceeded(
                f"a text has {len(text):,} characters, at most {_MAX_WINDOWED_CHARACTERS:,} are read in"
                " windows: split it",
                param="input",
            )
    return [model.tokenizer.encode_marked(text) for text in texts]


def _windows(
    index: int, read: MarkedTokens, limit: int, call: CallContext, truncate: bool, stride: int | None
) -> list[_Window]:
    before, after, count = read.before, read.after, len(read.ids)
    room, total = limit - len(before) - len(after), len(before) + len(read.ids) + len(after)

    def window(first: int, count: int) -> _Window:
        ids = (*before, *read.ids[first : first + count], *after)
        return _Window(index, first, count, len(before), ids)

    if not total:
        return []
    if stride is not None and not 0 <= stride < room:
        raise InvalidRequest(
            f"stride is {stride:,}, it must be from 0 to {room - 1:,}, less than a window of this model",
            param="stride",
        )
    if count <= room:
        return [window(0, count)]
    if stride is not None:
        starts = range(0, max(count - stride, 1), room - stride)
        return [window(first, min(room, count - first)) for first in starts]
    if not truncate:
        raise ContextLengthExceeded(
            f"text {index} has {total:,} tokens, the model's limit is {limit:,}: shorten it, cut it"
            " (truncate) or read it in windows (stride)",
            param="input",
        )
    call.warn("truncate", f"text {index} has {total:,} tokens and was cut to the model's {limit:,}")
    return [window(0, room)]


def _scored(text: str, read: MarkedTokens, window: _Window, logits: Array, head: Head) -> list[TokenScores]:
    scores = activated(logits, head.activation)
    tokens: list[TokenScores] = []
    for place in range(window.count):
        number = window.first + place
        start, end = read.places[number]
        inside = read.continues(text, number)
        tokens.append(TokenScores(start, end, inside, scores[window.before + place]))
    return tokens
