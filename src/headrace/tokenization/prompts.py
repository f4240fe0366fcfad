"""Tokens of prompts, looked at only where they can fit."""

from __future__ import annotations

from headrace.errors import ContextLengthExceeded
from headrace.tokenization.tokenizer import Tokenizer

TOKEN_CHARACTERS = 512
"""No vocabulary has a token that stands for more."""


def check_characters(text: str, context_length: int, param: str, what: str = "prompt") -> None:
    """Refuse a text that cannot fit, before time is spent on its tokens."""
    if len(text) > context_length * TOKEN_CHARACTERS:
        raise ContextLengthExceeded(
            f"{what} has {len(text):,} characters, far more than fit the model's limit of "
            f"{context_length:,} tokens: shorten it",
            param=param,
        )


def prompt_ids(
    prompt: str | tuple[int, ...],
    tokenizer: Tokenizer,
    context_length: int,
    param: str,
    what: str = "prompt",
) -> tuple[int, ...]:
    """The tokens of a prompt; ContextLengthExceeded names `param`, and `what` it is, for a text that cannot
    fit."""
    if not isinstance(prompt, str):
        return prompt
    check_characters(prompt, context_length, param, what)
    return tuple(tokenizer.encode_prompt(prompt))
