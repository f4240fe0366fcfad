"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.grammar.end_costs import end_costs

Mask = NDArray[np.uint32]
"""[V / 32 rounded up]: bit `id % 32` of word `id // 32` is set for each token that may be drawn."""


class TokenTable(Struct, frozen=True, kw_only=True):
    """The bytes of each of a model's V tokens inside a text; special tokens stand for their spelling.

    `encode` gives the ids of a text, however it treats the start of one.
    """

    tokens: Sequence[bytes]
    special_ids: frozenset[int]
    eos_ids: frozenset[int]
    encode: Callable[[str], list[int]]


class GrammarTokens:
    """A token table with the trie that masks are computed on. Building takes a second per 150,000 tokens."""

    is_tokenizer_wrapper = True  # what llguidance asks of a tokenizer: this and the next four
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        import llguidance  # a tenth of a cold start, and few requests need it

        self._table = table
        self.tokens = list(table.tokens)
        self.special_token_ids = sorted(table.special_ids)
        self.special_ids = {
            self.tokens[token].decode("utf-8", "replace"): token for token in self.special_token_ids
        }
        """By their spelling."""
        eos_ids = sorted(table.eos_ids)
        self.eos_token_id: int | None = eos_ids[0] if eos_ids else None
        # In two calls, because each holds the interpreter lock from its beginning to its end.
        plain = llguidance.LLTokenizer(self, eos_token=eos_ids or None, slices=[])  # type: ignore[arg-type]
        self.trie = plain.with_slices(llguidance.LLTokenizer.general_slices())
        self.vocabulary = len(table.tokens)

    def __call__(self, text: str) -> list[int]:
        """The ids of `text` as it would be encoded inside a longer one; called by llguidance."""
        # The second try is for tokenizers that put a space before a text, or would not repeat it exactly.
        for before in ("", "\x02"):
            try:
                ids = self._table.encode(before + text)
            except HeadraceError:  # it comes from within a step
                break
            ends = np.cumsum([len(self.tokens[token]) for token in ids]).tolist()
            wanted = ends[-1] - len(text.encode()) if ends else 0
            start = 0 if wanted == 0 else ends.index(wanted) + 1 if wanted in ends else None
            if start is not None and b"".join(self.tokens[token] for token in ids[start:]) == text.encode():
                return ids[start:]
        return self.trie.greedy_tokenize(text)

    @cached_property
    def end_costs(self) -> NDArray[np.float32]:
        """See `end_costs`."""
        return end_costs(self.tokens)

    @cached_property
    def unended(self) -> Mask:
        """The mask of all tokens but those that end a sequence."""
        return ~mask_of(self._table.eos_ids, self.vocabulary)


def mask_of(ids: Iterable[int], vocabulary: int) -> Mask:
    """The mask of exactly these tokens."""
    allowed = np.zeros(-(-vocabulary // 32) * 32, bool)
    allowed[list(ids)] = True
    return np.packbits(allowed, bitorder="little").view(np.uint32)
