"""Log probabilities of tokens in the shapes of both generating endpoints."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.wire import ChatLogprobs, ContentLogprob, TextLogprobs, TopLogprob
from headrace.engine.request import TokenLogprob
from headrace.text.tokenizer import Tokenizer


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
    """The shape of completions; `offset` is where these tokens' text begins, in characters."""
    tokens = [_shown(tokenizer.token_bytes(entry.token)) for entry in logprobs]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top = [
        {_shown(tokenizer.token_bytes(token)): logprob for token, logprob in entry.top} for entry in logprobs
    ]
    return TextLogprobs(tokens, [entry.logprob for entry in logprobs], top, offsets)


def _shown(data: bytes) -> str:
    """A token's bytes as text; a token that is part of a character is shown as `bytes:\\xe2\\x82`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
