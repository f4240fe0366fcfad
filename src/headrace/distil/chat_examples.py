"""Uploaded conversations as samples: in each the model learns what the assistant says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from headrace.chat.messages import Message
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.distil.samples import Sample
from headrace.errors import HeadraceError, InvalidRequest
from headrace.tokenization.tokenizer import Tokenizer

MIN_EXAMPLES = 10
"""As OpenAI's."""
MAX_EXAMPLES = 50_000
MAX_TOKEN = 512
"""Characters; no token of a model has more."""


class TaughtMessage(Struct, forbid_unknown_fields=True, kw_only=True):
    """A message of a conversation. An answer of `weight` 0 is read and not learned."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    weight: Literal[0, 1] = 1
    name: str | None = None


class TaughtConversation(Struct, forbid_unknown_fields=True, kw_only=True):
    """A line of a training file."""

    messages: Annotated[list[TaughtMessage], Meta(min_length=2, max_length=1000)]


def samples_of(
    text: str,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context: int,
    param: str,
    *,
    skips_unfit: bool = False,
) -> list[Sample]:
    """A sample for each answer that is to be learned, in the order of the lines. InvalidRequest names the
    line that is wrong, and `param`, the field that named the file; with `skips_unfit` such a line is left
    out."""
    lines = list(islice(_lines(text), MAX_EXAMPLES + 1))
    if not MIN_EXAMPLES <= len(lines) <= MAX_EXAMPLES:
        count = "more" if len(lines) > MAX_EXAMPLES else f"{len(lines):,}"
        raise InvalidRequest(
            f"the file has {count} examples, it must have {MIN_EXAMPLES} to {MAX_EXAMPLES:,}: one"
            " conversation a line",
            param=param,
        )
    found: list[Sample] = []
    for number, line in lines:
        try:
            read = msgspec.json.decode(line, type=TaughtConversation)
            found += list(_samples(read, tokenizer, template, context))
        except (msgspec.DecodeError, HeadraceError) as error:
            if skips_unfit:
                continue
            said = error.message if isinstance(error, HeadraceError) else str(error)
            raise InvalidRequest(
                f'line {number}: {said}; a line is {{"messages": [{{"role", "content"}}, …]}}', param=param
            ) from None
    if not found:
        raise InvalidRequest(
            "no answer of the file is to be learned: all have the weight 0, or do not fit the model",
            param=param,
        )
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers, one at a time: a file of line feeds alone would take a
    hundred times its size as a list."""
    start = number = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        number += 1
        line = text[start:end] if end > start else ""
        if line.strip():
            yield number, line
        start = end + 1


def _samples(
    conversation: TaughtConversation,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context: int,
) -> Iterable[Sample]:
    messages = conversation.messages
    if messages[-1].role != "assistant":
        raise InvalidRequest("the last message must be the assistant's")
    characters = sum(len(one.content) for one in messages)
    if characters > context * MAX_TOKEN:  # to tokenize it would take gigabytes
        raise InvalidRequest(
            f"the conversation has {characters:,} characters, the model's context is {context:,} tokens: "
            "shorten it"
        )
    said = [Message(one.role.replace("developer", "system"), one.content) for one in messages]
    for place, one in enumerate(messages):
        if one.role != "assistant" or not one.weight:
            continue
        prompt = template.render(said[:place])
        whole = template.render(said[: place + 1], add_generation_prompt=False)
        written = whole[len(prompt) :] if whole.startswith(prompt) else one.content
        before = tokenizer.encode(prompt, add_special=False)
        after = _answer(written, one.content, tokenizer)
        if len(before) + len(after) > context:
            raise InvalidRequest(
                f"the conversation has {len(before) + len(after):,} tokens, the model's context is"
                f" {context:,}: shorten it"
            )
        yield Sample(np.array([*before, *after], np.int32), len(before))


def _answer(written: str, content: str, tokenizer: Tokenizer) -> list[int]:
    """Up to the token that ends it, as the template writes it; where it writes none, the content and one."""
    tokens = tokenizer.encode(written, add_special=False)
    for place, token in enumerate(tokens):
        if token in tokenizer.eos_ids:
            return tokens[: place + 1]
    head, found, _ = written.partition(content) if content else ("", "", "")
    end = min(tokenizer.eos_ids, default=None)
    tokens = tokenizer.encode(head + found if found else content, add_special=False)
    return tokens if end is None else [*tokens, end]
