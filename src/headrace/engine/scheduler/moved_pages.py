"""Pages of the prefix tree that go to another process or come from one. Integers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from msgspec import Struct

from headrace.engine.scheduler.sequence import Sequence as Running
from headrace.engine.scheduler.sequence import State
from headrace.kv.pages import Pages
from headrace.kv.prefix_tree import PrefixTree

Root = tuple[bool, int | str, str]
"""A `Sequence.cache_root`."""


class ReservedPages(Struct, frozen=True):
    """Pages for the tokens of a text from its page `first` on; `held` are those before it."""

    root: Root
    tokens: tuple[int, ...]
    held: list[int]
    pages: list[int]

    @property
    def first(self) -> int:
        """The first page of the text that is not here."""
        return len(self.held)


class MovedPages:
    """What `pin` and `reserve` give is in use until `unpin` and `commit`. For the scheduler's thread."""

    def __init__(
        self,
        pages: Pages,
        tree: PrefixTree,
        page_tokens: int,
        running: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """`running` counts the sequences that may need a page each; `changed` is told of pages given back."""
        self._pages, self._tree, self._page_tokens = pages, tree, page_tokens
        self._running, self._changed = running, changed

    def pin(self, root: Root, tokens: Sequence[int], held: int, running: Running | None) -> list[int]:
        """The full pages of a text that are computed, without that of its last token and without the first
        `held`, which are pinned: of a sequence that is computing it, or out of the prefix tree. A page must
        not be in use longer than those before it, so pin all from the first one on."""
        limit = (len(tokens) - 1) // self._page_tokens
        if running is not None and running.state is State.RUNNING:
            found = running.pages[held : min(running.computed // self._page_tokens, limit)]
            for page in found:
                self._pages.retain(page)
            return found
        match = self._tree.match(root, tokens)
        self._tree.release(match.pages[:held])
        return match.pages[held:]

    def unpin(self, pages: Sequence[int]) -> None:
        """They were read."""
        self._tree.release(pages)
        self._changed()

    def reserve(self, root: Root, tokens: tuple[int, ...]) -> ReservedPages:
        """Pages for the full pages of a text that are not here, at most half of what is left when each
        running sequence has one more: texts that are waited for must not stop those."""
        match = self._tree.match(root, tokens)
        wanted = (len(tokens) - 1) // self._page_tokens - len(match.pages)
        room = (self._pages.free + self._tree.evictable - self._running()) // 2
        count = max(0, min(wanted, room))
        self._tree.evict(max(0, count - self._pages.free))
        taken = self._pages.allocate(count)
        assert taken is not None
        return ReservedPages(root, tokens, match.pages, taken)

    def commit(self, reserved: ReservedPages, count: int) -> int:
        """The first `count` of the pages are written: they are in the prefix tree now, the rest is free. How
        many tokens of the text are here."""
        pages = [*reserved.held, *reserved.pages[:count]]
        self._pages.release(reserved.pages[count:])
        if count:
            self._tree.insert(reserved.root, reserved.tokens, pages, reserved.first, len(pages))
        self._tree.release(pages)
        self._changed()
        return len(pages) * self._page_tokens

    def hottest(self, page_count: int) -> list[tuple[Root, int, tuple[int, ...]]]:
        """Texts of the most recently used pages, up to so many pages in all: the root of each, how many of
        its pages an earlier one of these has, and its tokens with one more at the end."""
        return [
            (root, shared, (*tokens, 0))
            for salt, shared, tokens in self._tree.recent(page_count)
            if (root := cast("Root", salt))[0]  # else it is one request's own
        ]
