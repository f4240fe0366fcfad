"""A model and its draft model must have the same tokens."""

from __future__ import annotations

from headrace.errors import UsageError
from headrace.tokenization.tokenizer import Tokenizer


def check_pair(name: str, tokenizer: Tokenizer, draft_name: str, draft_tokenizer: Tokenizer) -> None:
    """UsageError naming the first id that stands for different tokens in the two."""
    for token_id in range(max(tokenizer.vocabulary_size, draft_tokenizer.vocabulary_size)):
        ours, theirs = tokenizer.pieces.token_of(token_id), draft_tokenizer.pieces.token_of(token_id)
        if ours != theirs:
            raise UsageError(
                f"speculative_model '{draft_name}' has another tokenizer than '{name}': id {token_id} is "
                f"{_shown(theirs)} there and {_shown(ours)} here; choose a draft model of the same family",
                param="speculative_model",
            )


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)
