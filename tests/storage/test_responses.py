"""Kept responses: the bounds on how long and how much."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidRequest
from headrace.storage import responses as store
from headrace.storage.database import Database
from headrace.storage.responses import Responses, StoredItem


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> Responses:
    return Responses(Database(None), clock)


def add(kept: Responses, name: str, owner: str = "o", previous: str | None = None, size: int = 10) -> None:
    kept.add(name, owner, "in_progress", previous, b"{}", [StoredItem(f"{name}-item", b"x" * size)])
    kept.finish(name, "completed", b"{}", [StoredItem(f"{name}-out", b"y")], [b"event 0", b"event 1"])


def names(kept: Responses, candidates: str, owner: str = "o") -> str:
    return "".join(name for name in candidates if kept.find(owner, name) is not None)


def test_what_is_kept_comes_back(kept: Responses) -> None:
    add(kept, "a")
    found = kept.find("o", "a")
    assert found is not None and (found.status, found.previous_id, found.body) == ("completed", None, b"{}")
    assert [item.id for item in kept.items("a", output=False)] == ["a-item"]
    assert kept.items("a", output=True) == [StoredItem("a-out", b"y")]
    assert kept.item("o", "a-out") == StoredItem("a-out", b"y")
    assert kept.item("p", "a-out") is None and kept.find("p", "a") is None
    assert kept.events("a", -1) == [b"event 0", b"event 1"] and kept.events("a", 0) == [b"event 1"]


def test_a_deleted_response_takes_everything_along(kept: Responses) -> None:
    add(kept, "a")
    assert not kept.delete("p", "a")
    assert kept.delete("o", "a") and not kept.delete("o", "a")
    assert kept.item("o", "a-out") is None and kept.events("a", -1) == []
    kept.finish("a", "completed", b"{}", [StoredItem("late", b"z")], [b"event"])
    assert kept.find("o", "a") is None and kept.item("o", "late") is None


def test_a_chain_is_used_as_a_whole(kept: Responses, clock: Clock) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        add(kept, name, previous=previous)
    clock.now_s += store.KEPT_S - 1
    assert [one.id for one in kept.chain("o", "c")] == ["a", "b", "c"]
    assert kept.chain("p", "c") == [] == kept.chain("o", "x")
    clock.now_s += 2
    add(kept, "d")
    assert names(kept, "abcd") == "abcd"
    kept.delete("o", "a")
    assert kept.chain("o", "c")[0].previous_id == "a"  # which is not there: whoever reads it can tell


def test_what_nobody_used_for_long_is_dropped(kept: Responses, clock: Clock) -> None:
    add(kept, "a")
    kept.add("u", "o", "in_progress", None, b"{}", [])
    clock.now_s += store.KEPT_S + 1
    add(kept, "b")
    assert names(kept, "abu") == "bu"


def test_each_owner_has_so_much(kept: Responses, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PRUNE_BYTES", 0)
    monkeypatch.setattr(store, "KEPT_BYTES", 1000)
    add(kept, "z", owner="p", size=900)
    for name in "abcd":
        clock.now_s += 1
        add(kept, name, size=400)
        if name == "b":
            kept.chain("o", "a")  # used again: b is the oldest now
    assert names(kept, "abcd") == "acd"
    add(kept, "e", size=400)
    assert names(kept, "abcde") == "cde"  # what was there before the last one fits
    assert names(kept, "z", "p") == "z"


def test_a_conversation_that_no_model_reads(kept: Responses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHAIN_BYTES", 1000)
    add(kept, "a", size=600)
    add(kept, "b", previous="a", size=600)
    kept.chain("o", "a")
    with pytest.raises(InvalidRequest, match="begin a new one"):
        kept.chain("o", "b")


def test_who_works_on_it_says_so(kept: Responses, clock: Clock) -> None:
    kept.add("a", "o", "in_progress", None, b"{}", [])
    clock.now_s += store.STALE_S + 1
    found = kept.find("o", "a")
    assert found is not None and kept.stale(found)
    kept.still_made(["a"])
    found = kept.find("o", "a")
    assert found is not None and not kept.stale(found)
