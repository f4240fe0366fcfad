"""The prefix cache: a radix tree over full pages, one root per salt, with LRU eviction of leaves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Literal

from msgspec import Struct, field

from headrace.errors import ProgramError
from headrace.kv.pages import PAGE_TOKENS, Pages

MissReason = Literal[
    "cold",
    "diverged",
    "evicted",
    "partial_page",
    "in_flight",
    "disabled",
    "recurrent_state",
    "scored",
]
"""Why no more of a prompt came from the cache. None: every full page before the last token did. Otherwise
the first of these that applies to the first missing page:

- disabled: the request disabled the cache (decided by the scheduler).
- scored: the request wants the prompt's log-probabilities (decided by the scheduler).
- recurrent_state: the model keeps a state over all tokens so far, and no state is saved (decided by the
  scheduler, docs/decisions/0011).
- in_flight: a running sequence of the same salt is computing the same prefix now (decided by the
  scheduler).
- evicted: the page was cached under this salt and was evicted (known for a bounded number of pages).
- cold: no text cached under this salt begins with the prompt's first page.
- diverged: the prompt shares at least one page with a cached text that continues differently.
- partial_page: only full pages are shared. Either the matching cached text ends inside the missing page, or
  the prompt has no further full page before its last token.
"""

GHOSTS_PER_PAGE = 4
"""Number of evicted pages remembered, per page of the cache, to distinguish "evicted" from "cold"."""


class Match(Struct, frozen=True):
    """The longest cached prefix: its pages, retained for the caller, and the reason why it is not longer."""

    pages: list[int]
    tokens_matched: int
    cache_miss_reason: MissReason | None


class _Node(Struct, eq=False):
    """One cached page. `chain` identifies the tokens from the root through this page."""

    salt: Hashable
    tokens: tuple[int, ...]
    page: int
    parent: _Node | None
    chain: int
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict[tuple[int, ...], "_Node"])


class PrefixTree:
    """Finds, keeps and evicts pages by the tokens that precede and fill them. Salts never share pages.

    A node is one page. With several pages per edge, every partial match and every evicted page would split
    or trim an edge, with no fewer lookups. The tree holds one reference to each of its pages. A page with
    no other reference is idle and can be evicted.

    Two rules make eviction O(1) per page. A sequence that references a cached page references all pages
    before it (`insert` replaces duplicates), and `release` drops the last page first. So a page always
    becomes idle after its children, and the oldest idle page is a leaf.

    Memory is bounded by the number of pages: one node and one root each, and `GHOSTS_PER_PAGE` ghosts.
    """

    __slots__ = ("_ghosts", "_idle", "_nodes", "_page_tokens", "_pages", "_roots")

    def __init__(self, pages: Pages, *, page_tokens: int = PAGE_TOKENS) -> None:
        self._pages = pages
        self._page_tokens = page_tokens
        self._roots: dict[Hashable, _Node] = {}
        self._nodes: dict[int, _Node] = {}  # page -> node
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._ghosts: OrderedDict[tuple[Hashable, int], None] = OrderedDict()

    @property
    def cached(self) -> int:
        """Pages in the tree."""
        return len(self._nodes)

    @property
    def evictable(self) -> int:
        """Pages in the tree with no other reference."""
        return len(self._idle)

    def match(self, salt: Hashable, tokens: Sequence[int]) -> Match:
        """The longest cached run of full pages at the start of `tokens`, without the last token.

        The pages are retained for the caller, which returns them with `release`.
        """
        size = self._page_tokens
        limit = (len(tokens) - 1) // size
        node = self._roots.get(salt)
        found: list[int] = []
        while node is not None and len(found) < limit:
            start = len(found) * size
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            node = child
            self._retain(node.page)
            found.append(node.page)
        return Match(found, len(found) * size, self._miss_reason(salt, tokens, node, len(found), limit))

    def insert(self, salt: Hashable, tokens: Sequence[int], pages: list[int], first: int, last: int) -> None:
        """Add the fully computed `pages[first:last]` to the tree.

        `pages` are a sequence's pages in order, `tokens` their tokens; `pages[:first]` must already be in
        the tree (matched, or inserted before). If the tree already has a page for the same tokens, the
        caller's duplicate is released and replaced in `pages` by the tree's page, retained for the caller:
        the contents are bit-identical by the determinism contract.
        """
        size = self._page_tokens
        node = self._nodes.get(pages[first - 1]) if first else self._roots.get(salt)
        if node is None:
            if first:
                raise ProgramError(
                    f"page {pages[first - 1]} is not in the prefix tree: insert pages in order"
                )
            node = self._roots[salt] = _Node(salt, (), -1, None, 0)
        for index in range(first, last):
            key = tuple(tokens[index * size : (index + 1) * size])
            child = node.children.get(key)
            if child is None:
                page = pages[index]
                self._pages.retain(page)
                child = _Node(salt, key, page, node, hash((node.chain, key)))
                node.children[key] = self._nodes[page] = child
            elif child.page != pages[index]:
                self._retain(child.page)
                self._pages.release((pages[index],))
                pages[index] = child.page
            node = child

    def release(self, pages: Sequence[int], *, keep: bool = True) -> None:
        """Return a sequence's pages, cached or not. Cached pages stay in the tree as most recently used.

        With `keep` False, pages without other references leave the tree immediately.
        """
        for page in reversed(pages):
            self._pages.release((page,))
            node = self._nodes.get(page)
            if node is not None and self._pages.references(page) == 1:
                self._idle[page] = None
                if not keep and not node.children:
                    self._remove(node)

    def forget(self, page: int) -> None:
        """No text finds a page of the tree any more, nor those that follow it; nothing where it is not in the
        tree. Sequences that have them keep them, and may insert what follows; they are evicted as all are."""
        node = self._nodes.get(page)
        if node is not None:
            self._unlink(node)

    def evict(self, n: int) -> int:
        """Evict up to `n` idle pages, least recently used first; returns how many were freed."""
        freed = min(n, len(self._idle))
        for _ in range(freed):
            node = self._nodes[next(iter(self._idle))]
            self._remove(node)
            ghost = (node.salt, node.chain)
            self._ghosts[ghost] = None
            self._ghosts.move_to_end(ghost)
            if len(self._ghosts) > GHOSTS_PER_PAGE * self._pages.count:
                self._ghosts.popitem(last=False)
        return freed

    def recent(self, count: int) -> list[tuple[Hashable, int, tuple[int, ...]]]:
        """Texts of the most recently used pages, at most so many pages: the salt, how many pages of it an
        earlier one of these has, and the tokens. Pages in use come first."""
        chosen: dict[int, _Node] = {}
        for page in (*(page for page in self._nodes if page not in self._idle), *reversed(self._idle)):
            for node in self._path(self._nodes[page]):
                if len(chosen) < count:
                    chosen.setdefault(node.page, node)
        parents = {node.parent.page for node in chosen.values() if node.parent is not None}
        told: set[int] = set()
        texts: list[tuple[Hashable, int, tuple[int, ...]]] = []
        for last in (node for page, node in chosen.items() if page not in parents):
            path = self._path(last)
            shared = sum(node.page in told for node in path)
            told.update(node.page for node in path)
            texts.append((last.salt, shared, tuple(token for node in path for token in node.tokens)))
        return texts

    @staticmethod
    def _path(node: _Node) -> list[_Node]:
        """The nodes from the first page of a text to this one."""
        path = [node]
        while (parent := path[-1].parent) is not None and parent.parent is not None:
            path.append(parent)
        return path[::-1]

    def _retain(self, page: int) -> None:
        self._pages.retain(page)
        self._idle.pop(page, None)

    def _remove(self, node: _Node) -> None:
        """Remove an idle leaf from the tree and free its page."""
        assert not node.children
        self._unlink(node)
        del self._nodes[node.page], self._idle[node.page]
        self._pages.release((node.page,))

    def _unlink(self, node: _Node) -> None:
        """Take a node, which may be forgotten already, from its parent; a root without children goes too."""
        parent = node.parent
        assert parent is not None
        if parent.children.get(node.tokens) is node:
            del parent.children[node.tokens]
        if not parent.children and self._roots.get(node.salt) is parent:
            del self._roots[node.salt]

    def _miss_reason(
        self, salt: Hashable, tokens: Sequence[int], node: _Node | None, found: int, limit: int
    ) -> MissReason | None:
        """Why the match ended at `node` (None: the salt has no root) after `found` of `limit` pages."""
        if limit == 0:
            return "partial_page"
        if found == limit:
            return None
        size = self._page_tokens
        chain = node.chain if node else 0
        if (salt, hash((chain, tuple(tokens[found * size : (found + 1) * size])))) in self._ghosts:
            return "evicted"
        if node is None or found == 0:
            return "cold"
        return "diverged" if node.children else "partial_page"
