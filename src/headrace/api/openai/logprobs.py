"""Log probabilities of tokens in the shapes of both generating endpoints."""

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
from headrace.engine.request import TokenLogprob
from headrace.tokenization.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> ChatLogprobs:
    """The shape of chat completions: text and bytes of each token and its alternatives."""
    content: list[ContentLogprob] = []
    for entry in logprobs:
        data = tokenizer.token_bytes(entry.token)
        top = [
            TopLogprob(_shown(raw := tokenizer.token_bytes(token)), logprob, list(raw))
            for token, logprob in entry.top
        ]
        content.append(ContentLogprob(_shown(data), entry.logprob, list(data), top))
    return ChatLogprobs(content)


def text_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], offset: int) -> TextLogprobs:
    """The shape of completions; `offset` is where these tokens' text begins, in characters. Where a log
    probability is NaN, there is none."""
    tokens = [_shown(tokenizer.token_bytes(entry.token)) for entry in logprobs]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    values = [None if math.isnan(entry.logprob) else entry.logprob for entry in logprobs]
    top = [
        None
        if value is None
        else {_shown(tokenizer.token_bytes(token)): logprob for token, logprob in entry.top}
        for entry, value in zip(logprobs, values, strict=True)
    ]
    return TextLogprobs(tokens, values, top, offsets)


def echoed_logprobs(
    tokenizer: Tokenizer, prompt: Sequence[int], logprobs: Sequence[TokenLogprob], tops: int
) -> TextLogprobs:
    """A repeated prompt's in the shape of completions; special tokens are no part of its text."""
    entries = [TokenLogprob(prompt[0], math.nan)]
    entries += [TokenLogprob(entry.token, entry.logprob, entry.top[:tops]) for entry in logprobs]
    shaped = text_logprobs(tokenizer, entries, 0)
    special = tokenizer.pieces.special_ids
    widths = [0 if token in special else len(text) for token, text in zip(prompt, shaped.tokens, strict=True)]
    return msgspec.structs.replace(shaped, text_offset=list(accumulate(widths[:-1], initial=0)))


def joined_logprobs(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """One after the other."""
    return TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        (first.top_logprobs or []) + (second.top_logprobs or []),
        first.text_offset + second.text_offset,
    )


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], tops: int) -> PromptLogprobList:
    """vLLM's shape of a prompt's."""
    shaped: PromptLogprobList = [None]
    for entry in logprobs:
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top[:tops], 1)}
        every = {entry.token: (entry.logprob, entry.rank)} | ranked
        shaped.append(
            {
                str(token): PromptLogprob(logprob, rank, _shown(tokenizer.token_bytes(token)))
                for token, (logprob, rank) in every.items()
            }
        )
    return shaped


def _shown(data: bytes) -> str:
    """A token's bytes as text; a token that is part of a character is shown as `bytes:\\xe2\\x82`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
