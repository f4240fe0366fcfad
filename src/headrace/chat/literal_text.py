"""The tokens of a rendered conversation in which special tokens that messages spell are plain text.

A template writes special tokens as text, so what a message spells like one would become one. Where no message
holds any part of one, nothing differs from the usual way. Where one does, the conversation is rendered with
marks in the place of its texts, and what is between the marks is encoded apart from the texts.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache

from msgspec.structs import replace

from headrace.chat.messages import Message
from headrace.errors import InvalidRequest
from headrace.tokenization.tokenizer import Tokenizer


def literal_ids(
    tokenizer: Tokenizer, text: str, messages: Sequence[Message], render: Callable[[tuple[Message, ...]], str]
) -> tuple[int, ...]:
    """The tokens of `text`, which `render` has made of `messages`.

    InvalidRequest where a text must be encoded apart and the template does not repeat it as it is.
    """
    spelled = _spelled(tuple(map(_text_of(tokenizer), sorted(tokenizer.pieces.special_ids))))
    if not any(spelled.touches(message.content or "") for message in messages):
        return tuple(tokenizer.encode(text, add_special=False))
    texts: dict[str, str] = {}
    marked: list[Message] = []
    for message in messages:
        mark = f"mark{secrets.token_hex(12)}"
        texts[mark] = message.content or ""
        marked.append(replace(message, content=mark))
    ids: list[int] = []
    parts = re.split(f"({'|'.join(texts)})", render(tuple(marked)))
    if not set(texts) <= set(parts):
        raise InvalidRequest(
            "a text spells a special token of the model, and its chat template changes texts: take it out",
            param="messages",
        )
    for part in parts:
        if part:
            ids += tokenizer.encode(texts.get(part, part), add_special=False, parse_special=part not in texts)
    return tuple(ids)


def _text_of(tokenizer: Tokenizer) -> Callable[[int], str]:
    return lambda token: tokenizer.token_bytes(token).decode("utf-8", "replace")


class _Spelled:
    """The spellings of special tokens. `touches`: whether a text has one, or at its ends a part of one that
    the text around it could complete."""

    def __init__(self, spellings: Sequence[str]) -> None:
        known = [one for one in spellings if one]
        self._whole = re.compile("|".join(map(re.escape, known))) if known else None
        self._begun = frozenset(one[:end] for one in known for end in range(1, len(one)))
        self._ended = frozenset(one[start:] for one in known for start in range(1, len(one)))
        self._longest = max(map(len, known), default=0)

    def touches(self, text: str) -> bool:
        if self._whole is None:
            return False
        if self._whole.search(text) is not None:
            return True
        sizes = range(1, min(len(text), self._longest) + 1)
        return any(text[-size:] in self._begun or text[:size] in self._ended for size in sizes)


_spelled = lru_cache(16)(_Spelled)
