"""Texts to a vector of each token, such as for late interaction (ColBERT: Khattab and Zaharia 2020)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from msgspec import Struct

from headrace.errors import InvalidRequest, UnsupportedModel
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, ExpandedTokens, Truncation
from headrace.ops.value import Array
from headrace.tasks.task_limits import check_numbers
from headrace.tokenization.prompts import check_characters
from headrace.weights.input_rules import LateInteraction

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

Role = Literal["query", "document"]
_AT_A_TIME = 32
"""Texts whose vectors are in memory together while they are computed."""
_MASKS = ("[MASK]", "<mask>")


class _Input(Struct, frozen=True):
    """What the model reads, and which of its tokens have a vector (None: all)."""

    tokens: ExpandedTokens | str
    kept: tuple[int, ...] | None = None


async def token_vectors(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    call: CallContext,
    *,
    role: Role = "document",
    truncate: bool | Truncation = False,
    most: int | None = None,
) -> list[Array]:
    """Of each text the vectors [tokens, size] of its tokens, by a model for late interaction or one loaded
    with pooling `none`.

    A model for late interaction gets the marks of a `query` or a `document`: queries are expanded, documents
    have no vectors of punctuation, as the checkpoint says. Without such marks the role changes nothing.
    More than `most` numbers are refused.
    """
    portions = token_vector_portions(runner, name, texts, call, role=role, truncate=truncate)
    found: list[Array] = []
    async with aclosing(portions):
        async for part in portions:
            found += part
            if most is not None:
                check_numbers(found, len(texts), most, "inputs")
    return found


async def token_vector_portions(
    runner: ModelRunner,
    name: str | None,
    texts: Sequence[str],
    call: CallContext,
    *,
    role: Role = "document",
    truncate: bool | Truncation = False,
) -> AsyncGenerator[list[Array]]:
    """As `token_vectors`, of some texts at a time."""
    if role not in get_args(Role):
        raise InvalidRequest(f"role is {role!r}, it must be query or document", param="role")
    async with runner.lease(name, call, "token_embed") as model:
        inputs = await runner.in_thread(model, lambda: [_input(text, model, role) for text in texts])
        request = EmbeddingRequest(
            id=new_id(),
            model=model.name,
            inputs=tuple(one.tokens for one in inputs),
            task="token_embed",
            truncate=truncate,
        )
        async with aclosing(runner.portions(request, call, _AT_A_TIME)) as portions:
            left = iter(inputs)
            async for rows in portions:
                yield [_kept(vectors, next(left)) for vectors in rows]


def _kept(vectors: Array, given: _Input) -> Array:
    if given.kept is None:
        return vectors
    return vectors[[place for place in given.kept if place < len(vectors)]]


def _input(text: str, model: LoadedModel, role: Role) -> _Input:
    rules = model.input_rules.late_interaction
    if rules is None:
        return _Input(text)
    check_characters(text, model.context_length, "input")
    tokenizer = model.tokenizer
    ids = tokenizer.encode(text, parse_special=False)
    mark = _id_of(model, rules.query_mark if role == "query" else rules.document_mark)
    ids = [*ids[:1], mark, *ids[1:]]
    if role == "query":
        return _Input(_expanded(ids, model, rules))
    skipped = {tokenizer.id_of(word) for word in rules.skipped} - {None}
    kept = tuple(place for place, token in enumerate(ids) if token not in skipped)
    return _Input(ExpandedTokens(tuple(ids)), kept)


def _expanded(ids: list[int], model: LoadedModel, rules: LateInteraction) -> ExpandedTokens:
    missing = max(min(rules.query_length, model.context_length) - len(ids), 0)
    if not missing:
        return ExpandedTokens(tuple(ids))
    mask = next((found for found in map(model.tokenizer.id_of, _MASKS) if found is not None), None)
    if mask is None:
        raise UnsupportedModel(f"the tokenizer of {model.name} has no mask token, which expands its queries")
    return ExpandedTokens((*ids, *[mask] * missing), 0 if rules.attends_to_expansion else missing)


def _id_of(model: LoadedModel, mark: str) -> int:
    for spelling in (mark, mark.strip()):
        found = model.tokenizer.id_of(spelling)
        if found is not None:
            return found
    raise UnsupportedModel(f"the tokenizer of {model.name} has no token {mark!r}, which its settings name")


def max_sim(query: Array, document: Array) -> float:
    """The sum over a query's vectors of their largest product with one of a document's."""
    return float(np.max(query @ document.T, axis=1).sum())
