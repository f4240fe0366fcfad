"""Log probabilities of tokens in the formats of both generating endpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from headrace.api.openai.schema import (
    ChatLogprobs,
    ContentLogprob,
    PromptLogprob,
    PromptLogprobList,
    TextLogprobs,
    TopLogprob,
)
from headrace.inference.events import TokenText


def chat_logprobs(tokens: Sequence[TokenText]) -> ChatLogprobs:
    """The format of chat completions: text and bytes of each token and its alternatives."""
    content: list[ContentLogprob] = []
    for entry in tokens:
        top = [TopLogprob(_shown(other.bytes), other.logprob, list(other.bytes)) for other in entry.top]
        content.append(ContentLogprob(_shown(entry.bytes), entry.logprob, list(entry.bytes), top))
    return ChatLogprobs(content)


def text_logprobs(entries: Sequence[TokenText], offset: int) -> TextLogprobs:
    """The format of completions; `offset` is where these tokens' text begins, in characters. Where a log
    probability is NaN, there is none."""
    tokens = [_shown(entry.bytes) for entry in entries]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    values = [None if math.isnan(entry.logprob) else entry.logprob for entry in entries]
    top = [
        None if value is None else {_shown(other.bytes): other.logprob for other in entry.top}
        for entry, value in zip(entries, values, strict=True)
    ]
    return TextLogprobs(tokens, values, top, offsets)


def echoed_logprobs(scores: Sequence[TokenText], tops: int) -> TextLogprobs:
    """Those of a repeated prompt in the format of completions; `scores` begins with its first token, which
    has none. Special tokens are no part of the text."""
    entries = [msgspec.structs.replace(entry, top=entry.top[:tops]) for entry in scores]
    shaped = text_logprobs(entries, 0)
    widths = [0 if entry.special else len(text) for entry, text in zip(entries, shaped.tokens, strict=True)]
    return msgspec.structs.replace(shaped, text_offset=list(accumulate(widths[:-1], initial=0)))


def joined_logprobs(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """One after the other."""
    return TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        (first.top_logprobs or []) + (second.top_logprobs or []),
        first.text_offset + second.text_offset,
    )


def prompt_logprobs(scores: Sequence[TokenText], tops: int) -> PromptLogprobList:
    """vLLM's format of a prompt's; `scores` begins with its first token, which has none."""
    shaped: PromptLogprobList = [None]
    for entry in scores[1:]:
        ranked = {other.token: other for other in entry.top[:tops]}
        every = {entry.token: entry} | ranked
        shaped.append(
            {
                str(token): PromptLogprob(other.logprob, other.rank, _shown(other.bytes))
                for token, other in every.items()
            }
        )
    return shaped


def _shown(data: bytes) -> str:
    """A token's bytes as text; a token that is part of a character is shown as `bytes:\\xe2\\x82`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
