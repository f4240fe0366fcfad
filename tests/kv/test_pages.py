"""Pages: the free list and the reference counts."""

from __future__ import annotations

import pytest

from headrace.errors import ProgramError
from headrace.kv.pages import Pages, pages_for


def test_pages_for_rounds_up():
    assert [pages_for(n) for n in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]
    assert pages_for(9, page_tokens=4) == 3


def test_allocate_gives_each_page_once():
    pages = Pages(5)
    first, second = pages.allocate(2), pages.allocate(3)
    assert first is not None and second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pages.free == 0
    assert [pages.references(page) for page in range(5)] == [1] * 5


def test_allocate_changes_nothing_if_too_few_are_free():
    pages = Pages(3)
    assert pages.allocate(4) is None
    assert pages.free == 3
    assert pages.allocate(0) == []


def test_the_last_release_frees():
    pages = Pages(2)
    (page,) = pages.allocate(1) or []
    pages.retain(page)
    pages.release([page])
    assert (pages.free, pages.references(page)) == (1, 1)
    pages.release([page])
    assert (pages.free, pages.references(page)) == (2, 0)


def test_double_free_is_refused():
    pages = Pages(2)
    taken = pages.allocate(2) or []
    pages.release(taken)
    with pytest.raises(ProgramError, match="released twice"):
        pages.release(taken[:1])
    assert pages.free == 2


def test_retaining_a_free_page_is_rejected():
    with pytest.raises(ProgramError, match="page 0 is free"):
        Pages(1).retain(0)
