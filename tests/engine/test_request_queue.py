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
def queue() -> RequestQueue[Item]:
    return RequestQueue(EngineLimits(context_length=8, max_num_seqs=1, max_waiting=3))


def test_words_come_in_order_and_requests_stay_active_until_their_end(queue: RequestQueue[Item]) -> None:
    one, two = item("one"), item("two")
    queue.accept(one)
    queue.put(PauseRequest("one", True))
    queue.accept(two)
    queue.put(CancelRequest("one"))
    assert len(queue) == 4 and not queue.active
    assert queue.receive(idle=True) == [one, PauseRequest("one", True), two, CancelRequest("one")]
    assert len(queue) == 0 and list(queue.active) == ["one", "two"]
    queue.end(one)
    assert list(queue.active) == ["two"] and queue.pending_choices == 1
    assert queue.receive(idle=False) == []


def test_what_is_about_an_ended_request_is_not_about_the_next_of_its_id(
    queue: RequestQueue[Item],
) -> None:
    """A replica that has read a prompt may get the request itself, after a late cancellation."""
    first, second = item("one"), item("one")
    queue.accept(first)
    assert queue.receive(idle=True) == [first]
    queue.end(first)
    queue.put(CancelRequest("one"))
    queue.accept(second)
    queue.put(PauseRequest("one", True))
    assert queue.receive(idle=True) == [second, PauseRequest("one", True)]
    assert queue.active == {"one": second}


def test_ids_and_room(queue: RequestQueue[Item]) -> None:
    named = EngineRequest(prompt=(1,), request_id="mine")
    assert queue.request_id(named) == "mine"
    assert queue.request_id(EngineRequest(prompt=(1,))) != queue.request_id(EngineRequest(prompt=(1,)))
    first = item("first", n=3)
    queue.accept(first)
    with pytest.raises(InvalidRequest, match="'first' is in use"):
        queue.accept(item("first"))
    with pytest.raises(Overloaded, match="3 sequences"):
        queue.accept(item("second", n=2))
    queue.accept(item("third"))
    queue.receive(idle=False)
    queue.end(first)
    queue.accept(item("first", n=3))


def test_deadlines_count_from_submission(queue: RequestQueue[Item]) -> None:
    soon, never = item("soon", deadline_s=1.5), item("never")
    soon.submitted_s = 10.0
    for one in (soon, never):
        queue.accept(one)
    assert queue.overdue(99.0) == []  # the loop has not taken it yet
    queue.receive(idle=False)
    assert queue.overdue(11.5) == []
    [(late, error)] = queue.overdue(11.6)
    assert late is soon and "deadline of 1.5 s" in error.message


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_loop_ends_every_request(queue: RequestQueue[Item], fails: bool) -> None:
    got: dict[str, list[EngineEvent]] = {}

    def sink(name: str) -> EventCallback:
        return lambda events: got.setdefault(name, events) and None

    def broken(events: list[EngineEvent]) -> None:
        raise ValueError("this client is gone")

    def loop() -> None:
        with queue.serving():
            while queue.receive(idle=True) is not None:
                if fails:
                    raise ZeroDivisionError

    queue.accept(item("broken", broken))
    queue.accept(item("taken", sink("taken")))
    thread = threading.Thread(target=loop)
    if not fails:
        queue.close()
    thread.start()
    thread.join(60)
    [event] = got["taken"]
    assert isinstance(event, RequestFailed) and isinstance(event.error, EngineStopped)
    assert ("ZeroDivisionError" in event.error.message) == fails
    with pytest.raises(EngineStopped, match="ZeroDivisionError" if fails else "shutting down"):
        queue.accept(item("late"))
