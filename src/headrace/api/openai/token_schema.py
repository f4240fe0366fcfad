"""The bodies of replies about tokens and templates."""

from __future__ import annotations

import msgspec


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text, and as many as the model's context holds."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenPiece(msgspec.Struct, frozen=True):
    """A token and its text; its bytes where they are no UTF-8."""

    id: int
    piece: str | list[int]


class LlamaTokens(msgspec.Struct, frozen=True):
    """The tokens of a text as llama.cpp gives them, with `with_pieces` each with its text."""

    tokens: list[int | TokenPiece]


class DecodedText(msgspec.Struct, frozen=True):
    """The text of tokens, under vLLM's name and llama.cpp's."""

    prompt: str
    content: str


class PromptText(msgspec.Struct, frozen=True):
    """A text for a model."""

    prompt: str
