"""Pages of the KV cache: a free list and reference counts, integers only."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import ProgramError

PAGE_TOKENS = 16
"""Tokens per page: the unit in which KV memory is allocated and shared."""


def pages_for(tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """How many pages hold `tokens` tokens."""
    return -(-tokens // page_tokens)


class Pages:
    """`count` pages, numbered from 0. A page is free exactly when it has no references.

    All operations are O(1) per page. Misuse (releasing or retaining a free page) raises `ProgramError`.
    """

    __slots__ = ("_free", "_references", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages without references."""
        return len(self._free)

    def references(self, page: int) -> int:
        """How many references this page has."""
        return self._references[page]

    def allocate(self, n: int) -> list[int] | None:
        """`n` free pages, each with one reference, or None (and nothing allocated) where fewer are free."""
        if n > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self._references[page] = 1
        return taken

    def retain(self, page: int) -> None:
        """One more reference to a page in use."""
        if not self._references[page]:
            raise ProgramError(f"page {page} is free: only a page in use can be retained")
        self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One reference less to each page; the last one frees it."""
        for page in pages:
            if not self._references[page]:
                raise ProgramError(f"page {page} is released twice: it has no references left")
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)
