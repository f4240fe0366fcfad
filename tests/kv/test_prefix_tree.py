"""The prefix tree: matching, sharing, salts, eviction order, miss reasons, bounds."""

from __future__ import annotations

import pytest

from headrace.errors import ProgramError
from headrace.kv.pages import Pages
from headrace.kv.prefix_tree import GHOSTS_PER_PAGE, PrefixTree

P = 4


class Cache:
    """A tree over `count` pages, and the operations of a sequence on it."""

    def __init__(self, count: int = 16) -> None:
        self.pages = Pages(count)
        self.tree = PrefixTree(self.pages, page_tokens=P)

    def hold(self, tokens: list[int], salt: str = "a") -> list[int]:
        """Match, compute and insert all full pages; they stay referenced."""
        match = self.tree.match(salt, tokens)
        last = len(tokens) // P
        held = match.pages + (self.pages.allocate(last - len(match.pages)) or [])
        self.tree.insert(salt, tokens, held, len(match.pages), last)
        return held

    def store(self, tokens: list[int], salt: str = "a") -> list[int]:
        """The same, then release: the pages are idle."""
        held = self.hold(tokens, salt)
        self.tree.release(held)
        return held

    def look(self, tokens: list[int], salt: str = "a") -> tuple[int, str | None]:
        """Matched tokens and the miss reason; releases the pages."""
        match = self.tree.match(salt, tokens)
        self.tree.release(match.pages)
        assert match.tokens_matched == len(match.pages) * P
        return match.tokens_matched, match.cache_miss_reason


def text(n: int, start: int = 0) -> list[int]:
    return list(range(start, start + n))


def test_match_finds_the_pages_that_were_inserted():
    cache = Cache()
    stored = cache.store(text(12))
    match = cache.tree.match("a", text(14))
    assert (match.pages, match.tokens_matched, match.cache_miss_reason) == (stored, 12, None)
    assert [cache.pages.references(page) for page in stored] == [2, 2, 2]
    assert cache.tree.evictable == 0


def test_the_last_token_is_always_left_to_compute():
    cache = Cache()
    cache.store(text(12))
    assert cache.look(text(12)) == (8, None)
    assert cache.look(text(13)) == (12, None)


def test_salts_never_share():
    cache = Cache()
    cache.store(text(12), "a")
    assert cache.look(text(13), "b") == (0, "cold")
    mine = cache.store(text(12), "b")
    theirs = cache.tree.match("a", text(13)).pages
    assert not set(mine) & set(theirs)


def test_a_duplicate_is_replaced_by_the_page_in_the_tree():
    cache = Cache()
    first = cache.hold(text(8))
    second = cache.pages.allocate(2) or []
    free = cache.pages.free
    cache.tree.insert("a", text(8), second, 0, 2)
    assert second == first
    assert cache.pages.free == free + 2
    cache.tree.release(first)
    assert cache.tree.evictable == 0
    cache.tree.release(second)
    assert cache.tree.evictable == 2


def test_a_duplicate_of_an_idle_page_takes_it_out_of_eviction():
    cache = Cache()
    stored = cache.store(text(4))
    mine = cache.pages.allocate(1) or []
    cache.tree.insert("a", text(4), mine, 0, 1)
    assert mine == stored
    assert cache.tree.evict(1) == 0


def test_insert_continues_where_it_stopped():
    cache = Cache()
    held = cache.pages.allocate(3) or []
    cache.tree.insert("a", text(4), held, 0, 1)
    cache.tree.insert("a", text(12), held, 1, 3)
    cache.tree.insert("a", text(12), held, 2, 3)  # again: nothing changes
    assert cache.tree.cached == 3
    assert cache.tree.match("a", text(13)).pages == held


def test_insert_out_of_order_is_refused():
    cache = Cache()
    held = cache.pages.allocate(2) or []
    with pytest.raises(ProgramError, match="insert pages in order"):
        cache.tree.insert("a", text(8), held, 1, 2)


def test_forgotten_pages_are_found_no_more():
    cache = Cache(8)
    held = cache.hold(text(12))
    cache.store([*text(8), 90, 91, 92, 93])
    cache.tree.forget(held[1])
    cache.tree.forget(held[1])  # again: nothing changes
    assert cache.look(text(13)) == (4, "partial_page")
    assert cache.look([*text(8), 90, 91, 92, 93, 94])[0] == 4
    anew = cache.store(text(12))
    assert anew[0] == held[0] and not set(anew[1:]) & set(held)
    assert cache.look(text(13)) == (12, None)
    held += cache.pages.allocate(1) or []
    cache.tree.insert("a", text(16), held, 3, 4)  # who has them may go on
    assert cache.look(text(17)) == (12, "partial_page")
    cache.tree.release(held)
    assert cache.tree.evict(8) == 7 and cache.tree.cached == 0 and cache.pages.free == 8


def test_a_forgotten_text_leaves_room_for_the_same_one():
    cache = Cache(4)
    held = cache.hold(text(8))
    cache.tree.forget(held[0])
    assert cache.look(text(9)) == (0, "cold")
    cache.store(text(8))
    cache.tree.release(held, keep=False)  # not the root of those that came after
    assert cache.look(text(9)) == (8, None) and cache.tree.cached == 2
    assert cache.tree.evict(4) == 2 and cache.pages.free == 4
    cache.tree.forget(held[0])  # not in the tree any more
    assert cache.tree.cached == 0 and cache.pages.free == 4


def test_miss_reason_cold():
    cache = Cache()
    assert cache.look(text(9)) == (0, "cold")
    cache.store(text(8))
    assert cache.look(text(9, start=1)) == (0, "cold")


def test_miss_reason_diverged():
    cache = Cache()
    cache.store(text(12))
    assert cache.look([*text(4), *text(12, start=50)]) == (4, "diverged")


def test_miss_reason_partial_page():
    cache = Cache()
    assert cache.look(text(4)) == (0, "partial_page")  # no full page before the last token
    cache.store(text(11))  # its last 3 tokens fill no page
    assert cache.look(text(13)) == (8, "partial_page")


def test_miss_reason_evicted_is_known_within_the_salt_only():
    cache = Cache()
    cache.store(text(8), "a")
    assert cache.tree.evict(1) == 1
    assert cache.look(text(9), "a") == (4, "evicted")
    assert cache.tree.evict(1) == 1
    assert cache.look(text(9), "a") == (0, "evicted")
    assert cache.look(text(9), "b") == (0, "cold")
    cache.store(text(8), "a")
    assert cache.look(text(9), "a") == (8, None)


def test_a_page_evicted_again_is_remembered_as_the_newest():
    cache = Cache(2)
    for start in (0, 4, 8, 12, 0, 16, 20, 24, 28, 32, 36):  # 8 are remembered
        cache.store(text(4, start=100 + start))
        cache.tree.evict(1)
    assert cache.look(text(5, start=104)) == (0, "cold")
    assert cache.look(text(5, start=100)) == (0, "evicted")


def test_the_least_recently_used_leaf_goes_first():
    cache = Cache()
    shared, other = text(4), text(8, start=100)
    cache.store([*shared, *text(4, start=10)])
    cache.store([*shared, *text(4, start=20)])
    cache.store(other)
    cache.look([*shared, *text(4, start=10), 0])  # used again
    cache.tree.evict(1)
    assert cache.look([*shared, *text(4, start=20), 0])[1] == "evicted"
    assert cache.look([*shared, *text(4, start=10), 0])[1] is None
    cache.tree.evict(1)
    assert cache.look([*other, 0]) == (4, "evicted")


def test_referenced_pages_are_not_evicted():
    cache = Cache()
    held = cache.hold(text(8))
    cache.store([*text(8), *text(8, start=50)])
    assert cache.tree.evictable == 2
    assert cache.tree.evict(100) == 2
    assert cache.tree.match("a", text(9)).pages == held
    assert cache.tree.evict(100) == 0


def test_release_without_keep_leaves_only_pages_in_use():
    cache = Cache()
    held = cache.hold(text(8))
    longer = cache.hold([*text(8), *text(4, start=50)])
    cache.tree.release(longer, keep=False)
    assert cache.tree.cached == 2
    cache.tree.release(held, keep=False)
    assert cache.tree.cached == 0
    assert cache.pages.free == 16


def test_release_without_keep_leaves_ancestors_of_kept_pages():
    cache = Cache()
    held = cache.hold(text(8))
    cache.tree.release(cache.hold([*text(8), *text(4, start=50)]))
    cache.tree.release(held, keep=False)
    assert (cache.tree.cached, cache.tree.evictable) == (3, 3)
    assert cache.tree.evict(3) == 3
    assert cache.pages.free == 16


def test_memory_is_bounded_by_the_pages():
    cache = Cache(4)
    for start in range(0, 4000, 8):
        cache.tree.evict(2 - cache.pages.free if cache.pages.free < 2 else 0)
        cache.store(text(8, start=start), salt=f"key {start}")
    assert cache.tree.cached == 4
    assert len(cache.tree._roots) == 2
    assert len(cache.tree._ghosts) == GHOSTS_PER_PAGE * 4
    assert cache.look(text(9, start=0), "key 0") == (0, "cold")  # forgotten by now
    cache.tree.evict(4)
    assert not cache.tree._roots


def test_recent_texts_come_with_their_shared_pages_once():
    cache = Cache()
    cache.store(text(12))
    cache.store([*text(8), 90, 91, 92, 93])
    cache.store(text(8, 50), salt="b")
    told = [("b", 0, tuple(text(8, 50))), ("a", 0, (*text(8), 90, 91, 92, 93)), ("a", 2, tuple(text(12)))]
    assert cache.tree.recent(16) == told
    assert cache.tree.recent(5) == told[:2]
    assert cache.tree.recent(3) == [told[0], ("a", 0, tuple(text(4)))], "the beginning of what is cut off"
    assert cache.tree.recent(0) == []


def test_of_recent_texts_those_in_use_come_first():
    cache = Cache()
    held = cache.hold(text(8))
    cache.store(text(8, 50))
    assert cache.tree.recent(2) == [("a", 0, tuple(text(8)))]
    cache.tree.release(held)
    assert cache.tree.recent(2) == [("a", 0, tuple(text(8)))], "used last"
    cache.look(text(9, 50))
    assert cache.tree.recent(2) == [("a", 0, tuple(text(8, 50)))]
