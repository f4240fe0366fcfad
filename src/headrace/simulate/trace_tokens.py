"""The tokens of a simulated sequence: only which blocks are equal is known, not what they say."""

from __future__ import annotations

from collections.abc import Sequence

_UNIQUE = 1 << 40


class TraceTokens:
    """Has the length of a list of tokens, and its slices on the borders of blocks, for a Scheduler whose page
    is a block: a slice is the ids of its blocks. Blocks that are not wholly of the prompt are its own."""

    __slots__ = ("_blocks", "_length", "_own", "_size")

    def __init__(self, number: int, prompt_tokens: int, blocks: Sequence[int], size: int) -> None:
        self._blocks = tuple(blocks[: prompt_tokens // size])
        self._length, self._size = prompt_tokens, size
        self._own = -(number + 1) * _UNIQUE

    def __len__(self) -> int:
        return self._length

    def grow(self, count: int) -> None:
        """So many tokens were generated."""
        self._length += count

    def __getitem__(self, where: slice) -> tuple[int, ...]:
        first = (where.start or 0) // self._size
        last = (self._length if where.stop is None else min(where.stop, self._length)) // self._size
        if last == first + 1:  # nearly always
            return (self._blocks[first] if first < len(self._blocks) else self._own + first,)
        known = self._blocks[first:last]
        return (*known, *(self._own + place for place in range(first + len(known), last)))
