"""The tokens that both models read: windows of a text, or of what the reference itself writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from headrace.errors import UsageError
from headrace.ops.value import Ints
from headrace.tokenization.tokenizer import Tokenizer


class Windows(Struct, frozen=True, eq=False):
    """Token ids [N, L] of N windows that are read independently. Positions from `first` on are scored: the
    distribution of what follows each of them but the last. `source` says where they are from."""

    tokens: Ints
    first: int
    source: str

    @property
    def scored(self) -> int:
        """Scored positions of a window."""
        return self.tokens.shape[1] - 1 - self.first


def windows_of_text(
    tokenizer: Tokenizer, text: str, *, length: int, most: int, source: str = "text"
) -> Windows:
    """At most `most` windows of `length` tokens, evenly spread over the text. Where the tokenizer begins a
    text with a special token, each window begins with it.

    UsageError where the text has fewer tokens than one window needs.
    """
    opening = _opening(tokenizer)
    ids = np.array(tokenizer.encode(text, add_special=False), np.int32)
    body = length - len(opening)
    count = min(most, len(ids) // body)
    if count < 1:
        raise UsageError(
            f"the text has {len(ids):,} tokens, a window needs {body:,}: give a longer one, or a smaller"
            " --window where the command has that",
            param="text",
        )
    room = len(ids) - count * body  # left out between the windows
    starts = [index * body + room * index // count for index in range(count)]
    rows = [np.concatenate([opening, ids[start : start + body]]) for start in starts]
    return Windows(np.stack(rows).astype(np.int32), 0, source)


def windows_of_tokens(rows: Sequence[Sequence[int]], *, length: int, first: int, source: str) -> Windows:
    """Of sequences of at least `length` tokens each; shorter ones are left out.

    UsageError where none is that long.
    """
    long = [list(row[:length]) for row in rows if len(row) >= length]
    if not long:
        raise UsageError(
            f"the reference ended each of its {len(rows)} texts before {length} tokens: give it a --text",
            param="text",
        )
    return Windows(np.array(long, np.int32), first, source)


def opening_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What a text begins with before its first token: the token of a begin, or nothing."""
    return tuple(_opening(tokenizer).tolist())


def _opening(tokenizer: Tokenizer) -> Ints:
    has_opening = tokenizer.bos_id is not None and tokenizer.encode("a")[:1] == [tokenizer.bos_id]
    return np.array([tokenizer.bos_id] if has_opening else [], np.int32)
