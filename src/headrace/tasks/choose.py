"""Choice among labels by a decoder: each label's tokens are scored after the prompt; nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.preparation import chat_prompt, chat_tokens
from headrace.inference.requests import ChatRequest
from headrace.tasks.classify import Classification
from headrace.tasks.task_limits import check_labels
from headrace.tasks.token_logprobs import Ids, label_logprobs
from headrace.tokenization.prompts import check_characters

if TYPE_CHECKING:
    from headrace.chat.messages import Message
    from headrace.engine.client import LoadedModel


async def choose(
    runner: ModelRunner,
    name: str | None,
    prompt: str | Sequence[Message],
    labels: Sequence[str],
    call: CallContext,
    *,
    raw: bool = False,
) -> Classification:
    """The probability of each label as the continuation of a text or the answer to messages.

    Scores are exact: the softmax, over the labels, of the summed log-probabilities of their tokens; `raw`
    ones are these sums. Long labels are less likely than short ones: write labels of similar length. Raises
    InvalidRequest for labels that mean nothing or that the tokenizer cannot tell apart, and where the model
    does not generate.
    """
    check_labels(labels)
    async with runner.lease(name, call, "generate") as model:
        ids, written = await runner.in_thread(model, lambda: _tokens(model, prompt, labels, call))
        sums = np.array(await label_logprobs(runner, model.name, ids, written, call))
    scores = sums if raw else _softmax(sums)
    return Classification(labels[int(np.argmax(sums))], tuple(map(float, scores)), tuple(labels))


def _softmax(sums: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    found = np.exp(sums - sums.max())
    return list(found / found.sum())


def _tokens(
    model: LoadedModel, prompt: str | Sequence[Message], labels: Sequence[str], call: CallContext
) -> tuple[Ids, list[Ids]]:
    """The prompt's tokens and those of each label."""
    tokenizer = model.tokenizer
    if isinstance(prompt, str):
        check_characters(prompt, model.context_length, "prompt")
        ids, before = tuple(tokenizer.encode_prompt(prompt)), "" if prompt[-1:].isspace() else " "
        if before == " " and not prompt:
            before = ""
    else:
        ids = chat_tokens(
            chat_prompt(ChatRequest(id=new_id(), messages=tuple(prompt)), model, call, None), model
        )
        before = ""
    written = [
        tuple(tokenizer.encode(before + label, add_special=False, parse_special=False)) for label in labels
    ]
    for label, tokens in zip(labels, written, strict=True):
        if not tokens:
            raise InvalidRequest(
                f"the label {label!r:.80} has no tokens: write it in other words", param="labels"
            )
    if len(set(written)) < len(written):
        raise InvalidRequest(
            "the tokenizer reads two of the labels alike: write one in other words", param="labels"
        )
    return ids, written
