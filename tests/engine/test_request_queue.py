"""What an engine's loop takes in: order, names, room, deadlines, and the end of everything."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from headrace.engine.client import EngineLimits
from headrace.engine.request import EngineEvent, EngineRequest, EventCallback, RequestFailed
from headrace.engine.request_queue import CancelRequest, PauseRequest, RequestQueue
from headrace.errors import EngineStopped, InvalidRequest, Overloaded
from headrace.sampling.params import SamplingParams


@dataclass(slots=True, eq=False)
class Item:
    request_id: str
    request: EngineRequest
    sink: EventCallback
    submitted_s: float = 0.0


def item(
    name: str, sink: EventCallback = lambda events: None, *, n: int = 1, deadline_s: float | None = None
) -> Item:
    return Item(name, EngineRequest(prompt=(1,), params=SamplingParams(n=n), deadline_s=deadline_s), sink)


@pytest.fixture
def inbox() -> RequestQueue[Item]:
    return RequestQueue(EngineLimits(context_length=8, max_num_seqs=1, max_waiting=3))


def test_words_come_in_order_and_requests_stay_active_until_their_end(inbox: RequestQueue[Item]) -> None:
    one, two = item("one"), item("two")
    inbox.accept(one)
    inbox.tell(PauseRequest("one", True))
    inbox.accept(two)
    inbox.tell(CancelRequest("one"))
    assert len(inbox) == 4 and not inbox.active
    assert inbox.take(idle=True) == [one, PauseRequest("one", True), two, CancelRequest("one")]
    assert len(inbox) == 0 and list(inbox.active) == ["one", "two"]
    inbox.end(one)
    assert list(inbox.active) == ["two"] and inbox.pending_choices == 1
    assert inbox.take(idle=False) == []


def test_ids_and_room(inbox: RequestQueue[Item]) -> None:
    named = EngineRequest(prompt=(1,), request_id="mine")
    assert inbox.name(named) == "mine"
    assert inbox.name(EngineRequest(prompt=(1,))) != inbox.name(EngineRequest(prompt=(1,)))
    first = item("first", n=3)
    inbox.accept(first)
    with pytest.raises(InvalidRequest, match="'first' is in use"):
        inbox.accept(item("first"))
    with pytest.raises(Overloaded, match="3 sequences"):
        inbox.accept(item("second", n=2))
    inbox.accept(item("third"))
    inbox.take(idle=False)
    inbox.end(first)
    inbox.accept(item("first", n=3))


def test_deadlines_count_from_submission(inbox: RequestQueue[Item]) -> None:
    soon, never = item("soon", deadline_s=1.5), item("never")
    soon.submitted_s = 10.0
    for one in (soon, never):
        inbox.accept(one)
    assert inbox.late(99.0) == []  # the loop has not taken it yet
    inbox.take(idle=False)
    assert inbox.late(11.5) == []
    [(late, error)] = inbox.late(11.6)
    assert late is soon and "deadline of 1.5 s" in error.message


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_loop_ends_every_request(inbox: RequestQueue[Item], fails: bool) -> None:
    got: dict[str, list[EngineEvent]] = {}

    def sink(name: str) -> EventCallback:
        return lambda events: got.setdefault(name, events) and None

    def broken(events: list[EngineEvent]) -> None:
        raise ValueError("this client is gone")

    def loop() -> None:
        with inbox.serving():
            while inbox.take(idle=True) is not None:
                if fails:
                    raise ZeroDivisionError

    inbox.accept(item("broken", broken))
    inbox.accept(item("taken", sink("taken")))
    thread = threading.Thread(target=loop)
    if not fails:
        inbox.close()
    thread.start()
    thread.join(60)
    [event] = got["taken"]
    assert isinstance(event, RequestFailed) and isinstance(event.error, EngineStopped)
    assert ("ZeroDivisionError" in event.error.message) == fails
    with pytest.raises(EngineStopped, match="ZeroDivisionError" if fails else "shutting down"):
        inbox.accept(item("late"))
