"""Pages of the KV cache: a free list and reference counts, integers only."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import ProgramError

PAGE_TOKENS = 16
"""Tokens per page: the unit in which KV memory is allocated and shared."""


def pages_for(tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Number of pages for `tokens` tokens."""
    return -(-tokens // page_tokens)


class Pages:
    """`count` pages, numbered from 0. A page is free if and only if its reference count is 0.

    All operations are O(1) per page. Misuse (releasing or retaining a free page) raises `ProgramError`.
    """

    __slots__ = ("_free", "_references", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of pages without references."""
        return len(self._free)

    def references(self, page: int) -> int:
        """Reference count of a page."""
        return self._references[page]

    def allocate(self, n: int) -> list[int] | None:
        """Allocate `n` pages with one reference each; None, with no change, if fewer are free."""
        if n > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self._references[page] = 1
        return taken

    def retain(self, page: int) -> None:
        """Add a reference to an allocated page."""
        if not self._references[page]:
            raise ProgramError(f"page {page} is free: only a page in use can be retained")
        self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference to each page; a page without references becomes free."""
        for page in pages:
            if not self._references[page]:
                raise ProgramError(f"page {page} is released twice: it has no references left")
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)
