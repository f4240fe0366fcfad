"""Stored responses: limits on age and size."""

from __future__ import annotations

import pytest

from headrace.errors import InvalidRequest
from headrace.inference.response_store import ResponseStore
from headrace.inference.store_threads import StoreThreads
from headrace.storage import responses as store
from headrace.storage.database import Database
from headrace.storage.responses import Responses, StoredItem, StoredResponse


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stored(clock: Clock) -> Responses:
    return Responses(Database(None), clock)


def add(stored: Responses, name: str, owner: str = "o", previous: str | None = None, size: int = 10) -> None:
    stored.add(name, owner, "in_progress", previous, b"{}", [StoredItem(f"{name}-item", b"x" * size)])
    stored.finish(name, "completed", b"{}", [StoredItem(f"{name}-out", b"y")], [b"event 0", b"event 1"])


def names(stored: Responses, candidates: str, owner: str = "o") -> str:
    return "".join(name for name in candidates if stored.find(owner, name) is not None)


def test_a_stored_response_can_be_read(stored: Responses) -> None:
    add(stored, "a")
    found = stored.find("o", "a")
    assert found is not None and (found.status, found.previous_id, found.body) == ("completed", None, b"{}")
    assert [item.id for item in stored.items("a", output=False)] == ["a-item"]
    assert stored.items("a", output=True) == [StoredItem("a-out", b"y")]
    assert stored.item("o", "a-out") == StoredItem("a-out", b"y")
    assert stored.item("p", "a-out") is None and stored.find("p", "a") is None
    assert stored.events("a", -1) == [b"event 0", b"event 1"] and stored.events("a", 0) == [b"event 1"]


def test_a_response_that_ends_while_another_server_gives_it_up_keeps_its_result() -> None:
    """The store was slow for a while: its server was not heard of, and stores the result in this moment."""
    database, threads = Database(None), StoreThreads(1)
    kept = ResponseStore(database, threads)
    kept.store.add("a", "o", "in_progress", None, b"{}", [])

    def stale(response: StoredResponse) -> bool:
        kept.store.finish("a", "completed", b'{"x": 1}', [StoredItem("out", b"y")], [])
        return True

    kept.store.stale = stale
    found = kept._current("o", "a")
    assert found is not None and (found.status, found.body) == ("completed", b'{"x": 1}')
    kept.store.add("b", "o", "in_progress", None, b"{}", [])
    kept.store.stale = lambda response: True
    found = kept._current("o", "b")
    assert found is not None and found.status == "failed"
    threads.close()


def test_deleting_a_response_deletes_its_items_and_events(stored: Responses) -> None:
    add(stored, "a")
    assert not stored.delete("p", "a")
    assert stored.delete("o", "a") and not stored.delete("o", "a")
    assert stored.item("o", "a-out") is None and stored.events("a", -1) == []
    stored.finish("a", "completed", b"{}", [StoredItem("late", b"z")], [b"event"])
    assert stored.find("o", "a") is None and stored.item("o", "late") is None


def test_a_chain_is_used_as_a_whole(stored: Responses, clock: Clock) -> None:
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        add(stored, name, previous=previous)
    clock.now_s += store.KEPT_S - 1
    assert [one.id for one in stored.chain("o", "c")] == ["a", "b", "c"]
    assert stored.chain("p", "c") == [] == stored.chain("o", "x")
    clock.now_s += 2
    add(stored, "d")
    assert names(stored, "abcd") == "abcd"
    stored.delete("o", "a")
    assert stored.chain("o", "c")[0].previous_id == "a"  # which is not stored; readers can see this


def test_old_responses_are_deleted(stored: Responses, clock: Clock) -> None:
    add(stored, "a")
    stored.add("u", "o", "in_progress", None, b"{}", [])
    clock.now_s += store.KEPT_S + 1
    add(stored, "b")
    assert names(stored, "abu") == "bu"


def test_each_owner_has_a_size_limit(
    stored: Responses, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PRUNE_BYTES", 0)
    monkeypatch.setattr(store, "KEPT_BYTES", 1000)
    add(stored, "z", owner="p", size=900)
    for name in "abcd":
        clock.now_s += 1
        add(stored, name, size=400)
        if name == "b":
            stored.chain("o", "a")  # used again: b is now the oldest
    assert names(stored, "abcd") == "acd"
    add(stored, "e", size=400)
    assert names(stored, "abcde") == "cde"  # what was stored before the last one fits
    assert names(stored, "z", "p") == "z"


def test_a_too_large_conversation_is_rejected(stored: Responses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHAIN_BYTES", 1000)
    add(stored, "a", size=600)
    add(stored, "b", previous="a", size=600)
    stored.chain("o", "a")
    with pytest.raises(InvalidRequest, match="begin a new one"):
        stored.chain("o", "b")


def test_a_response_is_stale_without_heartbeats(stored: Responses, clock: Clock) -> None:
    stored.add("a", "o", "in_progress", None, b"{}", [])
    clock.now_s += store.STALE_S + 1
    found = stored.find("o", "a")
    assert found is not None and stored.stale(found)
    stored.still_made(["a"])
    found = stored.find("o", "a")
    assert found is not None and not stored.stale(found)
