"""Choice among labels by a decoder: each label's tokens are scored after the prompt; nothing is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.keywords import new_id
from headrace.inference.model_runner import ModelRunner
from headrace.inference.preparation import chat_prompt, chat_tokens
from headrace.inference.requests import ChatRequest
from headrace.tasks.continuation_logprobs import Ids, continuation_logprobs
from headrace.tasks.label_scores import Classification, activated, best_label
from headrace.tasks.task_limits import check_labels
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
    [found] = await choose_each(runner, name, [prompt], labels, call, raw=raw)
    return found


async def choose_each(
    runner: ModelRunner,
    name: str | None,
    prompts: Sequence[str | Sequence[Message]],
    labels: Sequence[str],
    call: CallContext,
    *,
    raw: bool = False,
) -> list[Classification]:
    """As `choose` for each of several prompts, which are computed together and end alike: all with white
    space, all without, or with messages."""
    check_labels(labels)
    async with runner.lease(name, call, "generate") as model:
        ids = await runner.in_thread(model, lambda: [_prompt_ids(model, one, call) for one in prompts])
        written = await runner.in_thread(model, lambda: _label_ids(model, prompts[0], labels))
        sums = await continuation_logprobs(runner, model.name, ids, written, call)
    scores = sums if raw else activated(sums, "softmax")
    return [best_label(row, tuple(labels)) for row in scores]


def _prompt_ids(model: LoadedModel, prompt: str | Sequence[Message], call: CallContext) -> Ids:
    if isinstance(prompt, str):
        check_characters(prompt, model.context_length, "prompt")
        return tuple(model.tokenizer.encode_prompt(prompt))
    request = ChatRequest(id=new_id(), messages=tuple(prompt))
    return chat_tokens(chat_prompt(request, model, call, None), model)


def _label_ids(model: LoadedModel, prompt: str | Sequence[Message], labels: Sequence[str]) -> list[Ids]:
    """The tokens of each label after a prompt: with a blank before it where a text does not end with one."""
    before = " " if isinstance(prompt, str) and prompt and not prompt[-1].isspace() else ""
    written = [
        tuple(model.tokenizer.encode(before + label, add_special=False, parse_special=False))
        for label in labels
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
    return written
