"""Pairs of texts scored by a decoder that is asked whether one answers the other (Zhang et al. 2025, Qwen3
Embedding): the probability of "yes" against "no" as its next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import UnsupportedModel
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.preparation import check_characters
from headrace.inference.requests import TextPair
from headrace.tasks.continuation_logprobs import Ids, continuation_logprobs
from headrace.tasks.label_scores import activated

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The model card's wording, which the checkpoints are trained with.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def judges(model: LoadedModel) -> bool:
    """Whether the model's name or folder says that it is a reranker."""
    return "rerank" in f"{model.name}/{model.folder.name}".lower()


async def judge(
    runner: ModelRunner,
    name: str | None,
    model: LoadedModel,
    pairs: Sequence[TextPair],
    call: CallContext,
    instruction: str | None,
    *,
    raw: bool = False,
) -> list[float]:
    """The probability of yes against no for each pair; `raw`: the difference of their log-probabilities.

    UnsupportedModel where "yes" and "no" are no single tokens.
    """
    yes, no = (_token(model, word) for word in ("yes", "no"))
    prompts = await runner.in_thread(
        model, lambda: [_prompt(model, pair, instruction or INSTRUCTION) for pair in pairs]
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


def _prompt(model: LoadedModel, pair: TextPair, instruction: str) -> Ids:
    """The instruction and the query come first, so that documents share their keys and values. Special
    tokens that a text spells are plain text."""
    tokenizer = model.tokenizer
    text = f"<Instruct>: {instruction}\n<Query>: {pair.first}\n<Document>: {pair.second}"
    check_characters(text, model.context_length, "documents")
    return (
        *tokenizer.encode(_BEFORE, add_special=False),
        *tokenizer.encode(text, add_special=False, parse_special=False),
        *tokenizer.encode(_AFTER, add_special=False),
    )
