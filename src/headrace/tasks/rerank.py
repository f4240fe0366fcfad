"""Documents in the order in which they answer a query; scores of pairs of texts.

By a cross-encoder, by late interaction (the sum of each query token's largest product), by a decoder that
says yes or no (Qwen3-Reranker), by the cosine of an embedder's vectors, or by a remote reranker.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec import Struct

from headrace.engine.unit_rows import unit_rows
from headrace.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import EmbeddingRequest, InputName, TextPair, Truncation
from headrace.tasks.classify import classify
from headrace.tasks.judge import judge, judges
from headrace.tasks.label_scores import activated
from headrace.tasks.late_interaction import max_sim, token_vector_portions, token_vectors
from headrace.tasks.task_limits import check_count, check_strings, check_texts

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

RERANKS = ("rerank", "classify", "token_embed", "embed", "generate")


class DocumentScore(Struct, frozen=True):
    """A document by its index among those given, and how well it answers the query."""

    index: int
    score: float


class PairOptions(Struct, frozen=True, kw_only=True):
    """How pairs are read and scored.

    `truncate` cuts what is too long, with a warning; `max_tokens_per_doc` cuts second texts to so many
    tokens. `raw` scores are logits. `instruction` tells a decoder what the query is for.
    """

    truncate: bool | Truncation = False
    max_tokens_per_doc: int | None = None
    raw: bool = False
    instruction: str | None = None


DEFAULT_OPTIONS = PairOptions()


async def rerank(
    runner: ModelRunner,
    name: str | None,
    query: str,
    documents: Sequence[str],
    call: CallContext,
    *,
    top_n: int | None = None,
    options: PairOptions = DEFAULT_OPTIONS,
) -> list[DocumentScore]:
    """The documents, best first (equal ones in their order); the `top_n` best where it is given."""
    check_strings([query], "query")
    check_strings(documents, "documents")
    check_texts(documents, "documents")
    check_count(top_n, "top_n")
    scores = await score_pairs(runner, name, [TextPair(query, one) for one in documents], call, options)
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return [DocumentScore(index, scores[index]) for index in order[:top_n]]


async def score_pairs(
    runner: ModelRunner,
    name: str | None,
    pairs: Sequence[TextPair],
    call: CallContext,
    options: PairOptions = DEFAULT_OPTIONS,
) -> list[float]:
    """How well the second text of each pair answers the first.

    Raises InvalidRequest where the model can score no pairs, ContextLengthExceeded for a pair that is too
    long unless it may be cut.
    """
    for pair in pairs:
        check_strings((pair.first, pair.second), "pairs")
    check_count(options.max_tokens_per_doc, "max_tokens_per_doc")
    name = name or runner.able("rerank") or runner.able("embed")
    async with AsyncExitStack() as stack:
        try:
            model = await stack.enter_async_context(runner.lease(name, call, *RERANKS))
        except ModelNotFound:
            if name is None:
                raise
            return await _elsewhere(runner, name, pairs, call, options)
        return await _here(runner, model, pairs, call, options)


async def _here(
    runner: ModelRunner,
    model: LoadedModel,
    pairs: Sequence[TextPair],
    call: CallContext,
    options: PairOptions,
) -> list[float]:
    """The scores of a model of this machine."""
    name = model.name
    if options.max_tokens_per_doc is not None:
        most = options.max_tokens_per_doc
        pairs = await runner.in_thread(model, lambda: _shortened(model, pairs, most, call))
    tasks = model.tasks
    if options.instruction is not None and "generate" not in tasks:
        call.warn("instruction", "instruction has no effect: only rerankers that are decoders read one")
    if "classify" in tasks:
        return await _cross_encoded(runner, name, model, pairs, call, options)
    if "token_embed" in tasks:
        return await _late_interaction(runner, name, pairs, call, options)
    if "embed" in tasks:
        call.warn("model", f"{model.name} is an embedder: the scores are cosines of its vectors")
        return await _cosines(runner, name, pairs, call, options)
    if options.instruction is None and not judges(model):
        raise InvalidRequest(
            f"{model.name} generates text: name a reranker, or send an instruction, with which the"
            " probability that it says yes rather than no is the score",
            param="model",
        )
    return await judge(
        runner,
        name,
        model,
        pairs,
        call,
        options.instruction,
        raw=options.raw,
        truncate=options.truncate,
    )


async def _elsewhere(
    runner: ModelRunner, name: str, pairs: Sequence[TextPair], call: CallContext, options: PairOptions
) -> list[float]:
    """The scores of a remote model, which the handler knows, or says that there is none: one request for each
    query."""
    if options.instruction is not None:
        call.warn("instruction", "instruction has no effect: a remote reranker reads none")
    if options.raw:
        call.warn("raw_scores", "has no effect: the scores of a remote reranker are its provider's")
    scores = [0.0] * len(pairs)
    for query in dict.fromkeys(pair.first for pair in pairs):
        places = [place for place, pair in enumerate(pairs) if pair.first == query]
        request = EmbeddingRequest(
            id=new_id(),
            model=name,
            task="rerank",
            inputs=tuple(pairs[place] for place in places),
            truncate=options.truncate,
            max_tokens=options.max_tokens_per_doc,
        )
        for place, row in zip(places, await runner.rows(request, call), strict=True):
            scores[place] = float(row[0, 0])
    return scores


def as_pair(given: object, index: int) -> TextPair:
    """Two texts as a pair; InvalidRequest for anything else."""
    if isinstance(given, TextPair):
        return given
    shown = repr(given)[:100]
    both = cast("Sequence[str]", given) if isinstance(given, tuple | list) else ()
    if len(both) != 2:
        raise InvalidRequest(
            f"pairs[{index}] is {shown}, it must be two texts: (query, document)", param="pairs"
        )
    return TextPair(both[0], both[1])


def _shortened(model: LoadedModel, pairs: Sequence[TextPair], most: int, call: CallContext) -> list[TextPair]:
    """The pairs with at most `most` tokens in each second text."""
    found, cut = list[TextPair](), 0
    for pair in pairs:
        _, places = model.tokenizer.encode_with_places(pair.second)
        if len(places) > most:
            cut += 1
            pair = TextPair(pair.first, pair.second[: places[most - 1][1]])
        found.append(pair)
    if cut:
        call.warn("max_tokens_per_doc", f"{cut:,} documents had more than {most:,} tokens and were cut")
    return found


async def _cross_encoded(
    runner: ModelRunner,
    name: str | None,
    model: LoadedModel,
    pairs: Sequence[TextPair],
    call: CallContext,
    options: PairOptions,
) -> list[float]:
    labels = model.head.labels if model.head is not None else ()
    if len(labels) != 1:
        raise InvalidRequest(
            f"{model.name} tells {len(labels):,} labels apart, a reranker has one score: name a reranker, or"
            " use classify",
            param="model",
        )
    found = await classify(runner, name, pairs, call, truncate=options.truncate, raw=True)
    logits = np.array([one.scores[0] for one in found])
    return (logits if options.raw else activated(logits, "sigmoid")).tolist()


def _places(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Every text once, and the place of each: a query is computed once."""
    once = list(dict.fromkeys(texts))
    known = {text: place for place, text in enumerate(once)}
    return once, [known[text] for text in texts]


def _names(pairs: Sequence[TextPair], texts: Sequence[str]) -> tuple[InputName, ...]:
    """What each of some texts of pairs is called: a query, or the first document that it is."""
    queries = list(dict.fromkeys(pair.first for pair in pairs))
    names = {
        pair.second: InputName(f"document {index}") for index, pair in reversed(list(enumerate(pairs)))
    } | {
        query: InputName("the query" if len(queries) == 1 else f"query {index}", "query")
        for index, query in enumerate(queries)
    }
    return tuple(names[text] for text in texts)


async def _late_interaction(
    runner: ModelRunner, name: str | None, pairs: Sequence[TextPair], call: CallContext, options: PairOptions
) -> list[float]:
    queries, places = _places([pair.first for pair in pairs])
    try:
        asked = await token_vectors(runner, name, queries, call, role="query", truncate=options.truncate)
    except ContextLengthExceeded as error:
        error.param = "query"
        raise
    documents = [pair.second for pair in pairs]
    scores: list[float] = []
    portions = token_vector_portions(runner, name, documents, call, truncate=options.truncate)
    async with aclosing(portions):
        async for part in portions:
            for vectors in part:
                scores.append(max_sim(asked[places[len(scores)]], vectors))
    return scores


async def _cosines(
    runner: ModelRunner, name: str | None, pairs: Sequence[TextPair], call: CallContext, options: PairOptions
) -> list[float]:
    texts, places = _places([text for pair in pairs for text in (pair.first, pair.second)])
    request = EmbeddingRequest(
        id=new_id(),
        model=name,
        inputs=tuple(texts),
        input_names=_names(pairs, texts),
        truncate=options.truncate,
    )
    vectors = unit_rows(np.concatenate(await runner.rows(request, call)))
    return [
        float(vectors[first] @ vectors[second])
        for first, second in zip(places[::2], places[1::2], strict=True)
    ]
