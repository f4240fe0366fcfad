"""Pairs of texts scored by a decoder that is asked whether one answers the other (Zhang et al. 2025, Qwen3
Embedding): the probability of "yes" against "no" as its next token; of mxbai-rerank-v2 (Shakir et al. 2025)
that of "1" against "0"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.errors import ContextLengthExceeded, InvalidRequest, UnsupportedModel
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import TextPair, Truncation, as_truncation
from headrace.tasks.continuation_logprobs import Ids, continuation_logprobs
from headrace.tasks.label_scores import activated
from headrace.tokenization.prompts import check_characters

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


class _Wording(Struct, frozen=True):
    """How a family of rerankers is asked, as in its model cards, which is how it was trained: what is before
    and after the texts, and the words for relevant and not. `pieces` are tokenized apart."""

    before: str
    after: str
    yes: str
    no: str
    pieces: Callable[[TextPair, str | None], tuple[str, ...]]
    document: int
    """The piece that ends with the document."""


class _Question(Struct, frozen=True):
    """The tokens of a prompt, and where those of its document end."""

    ids: Ids
    document_end: int


_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_RELEVANCE = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each"
    " query-document pair, carefully analyze the semantic relationship between them, then provide your binary"
    " relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
)


def _qwen3_pieces(pair: TextPair, instruction: str | None) -> tuple[str, ...]:
    asked = instruction or _INSTRUCTION
    return (f"<Instruct>: {asked}\n<Query>: {pair.first}\n<Document>: {pair.second}",)


def _mxbai_pieces(pair: TextPair, instruction: str | None) -> tuple[str, ...]:
    asked = "" if instruction is None else f"instruction: {instruction}\n"
    return (f"{asked}query: {pair.first}", "\n", f"document: {pair.second}", "\n", _RELEVANCE)


_QWEN3 = _Wording(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "yes",
    "no",
    _qwen3_pieces,
    0,
)
_MXBAI = _Wording(
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
    "1",
    "0",
    _mxbai_pieces,
    2,
)


def judges(model: LoadedModel) -> bool:
    """Whether the model's name or folder says that it is a reranker."""
    return "rerank" in _names(model)


def _names(model: LoadedModel) -> str:
    return f"{model.name}/{model.folder.name}".lower()


async def judge(
    runner: ModelRunner,
    name: str | None,
    model: LoadedModel,
    pairs: Sequence[TextPair],
    call: CallContext,
    instruction: str | None,
    *,
    raw: bool = False,
    truncate: bool | Truncation = False,
) -> list[float]:
    """The probability of yes against no for each pair; `raw`: the difference of their log-probabilities.

    A prompt that is too long is refused, or with `truncate` its document cut, with a warning.

    UnsupportedModel where the words for yes and no are no single tokens.
    """
    wording = _MXBAI if "mxbai-rerank" in _names(model) else _QWEN3
    yes, no = (_token(model, word) for word in (wording.yes, wording.no))
    prompts = await runner.in_thread(
        model,
        lambda: [
            _fitted(
                _prompt(model, wording, wording.pieces(pair, instruction)), index, pair, truncate, model, call
            )
            for index, pair in enumerate(pairs)
        ],
    )
    found = await continuation_logprobs(runner, name, prompts, [(yes,), (no,)], call)
    logits = found[:, 0] - found[:, 1]
    return (logits if raw else activated(logits, "sigmoid")).tolist()


def _token(model: LoadedModel, word: str) -> int:
    ids = model.tokenizer.encode(word, add_special=False)
    if len(ids) != 1:
        raise UnsupportedModel(
            f"{model.name} cannot rerank: its tokenizer writes {word!r} with {len(ids)} tokens, a reranker"
            " has one for it"
        )
    return ids[0]


def _prompt(model: LoadedModel, wording: _Wording, pieces: tuple[str, ...]) -> _Question:
    """The instruction and the query come first, so that documents share their keys and values. Special
    tokens that a text spells are plain text."""
    tokenizer = model.tokenizer
    check_characters("".join(pieces), model.context_length, "input", "a pair")
    ids, end = list(tokenizer.encode(wording.before, add_special=False)), 0
    for index, piece in enumerate(pieces):
        ids += tokenizer.encode(piece, add_special=False, parse_special=False)
        if index == wording.document:
            end = len(ids)
    return _Question((*ids, *tokenizer.encode(wording.after, add_special=False)), end)


def _fitted(
    asked: _Question,
    index: int,
    pair: TextPair,
    truncate: bool | Truncation,
    model: LoadedModel,
    call: CallContext,
) -> Ids:
    """The tokens of a question, its document cut where that is asked for. Raises ContextLengthExceeded."""
    how = as_truncation(truncate)
    most = model.context_length - 1  # the answer
    if how is None and len(asked.ids) > most:
        raise ContextLengthExceeded(
            f"pair {index} has {len(asked.ids):,} tokens with the instruction, the limit is {most:,}: shorten"
            " it or send truncate",
            param="input",
            prompt_tokens=len(asked.ids),
            context_length=model.context_length,
        )
    if how is None:
        return asked.ids
    if how.limit is not None and how.limit > most:
        raise InvalidRequest(
            f"{how.param} is {how.limit:,}, the model's limit is {most:,}: send at most that", param=how.param
        )
    limit = how.limit or most
    left_out = len(asked.ids) - limit
    if left_out <= 0:
        return asked.ids
    if how.side == "left":
        raise InvalidRequest("truncation_side left: of a pair the document's end is cut", param=how.param)
    document = model.tokenizer.encode(pair.second, add_special=False, parse_special=False)
    if left_out >= len(document):
        raise ContextLengthExceeded(
            f"pair {index} has {len(asked.ids):,} tokens, {len(document):,} of its document: without it they"
            f" are more than {limit:,}: shorten the query",
            param="query",
        )
    call.warn(
        how.param,
        f"pair {index} has {len(asked.ids):,} tokens and was cut to {limit:,}: {left_out:,} of its document"
        " were left out",
    )
    return asked.ids[: asked.document_end - left_out] + asked.ids[asked.document_end :]
