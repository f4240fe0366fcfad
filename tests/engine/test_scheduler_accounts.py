"""Fairness among accounts: deficit round robin in the queue, and what the scheduler makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import scheduler, sequence, step

from headrace.engine.fair_queue import FairQueue
from headrace.errors import ProgramError

QUANTUM = 8


@dataclass(eq=False)
class Item:
    account: str
    rank: tuple[float, int]
    cost_tokens: int = 1
    priority: int = 0


def queue_of(*items: Item, quantum: int = QUANTUM) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue(quantum)
    for item in items:
        queue.add(item)
    return queue


def drained(queue: FairQueue[Item]) -> list[Item]:
    taken: list[Item] = []
    while (item := queue.next()) is not None:
        assert queue.next() is item, "the choice stays until it is taken"
        queue.take(item)
        taken.append(item)
    assert len(queue) == 0
    return taken


def test_a_single_request_is_not_behind_a_thousand_of_another_account() -> None:
    many = [Item("many", (0.0, i), cost_tokens=100) for i in range(1000)]
    queue = queue_of(*many)
    for item in many[:3]:
        assert queue.next() is item
        queue.take(item)
    single = Item("single", (60.0, 1000), cost_tokens=100)
    queue.add(single)
    assert drained(queue).index(single) <= 1


def test_within_an_account_it_is_by_rank() -> None:
    items = [Item("a", (float(rank), rank), cost_tokens=rank % 5) for rank in range(20)]
    assert drained(queue_of(*items[::-1])) == items


costs = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@given(st.lists(costs, min_size=2, max_size=5), st.integers(1, 50))
def test_accounts_that_wait_get_the_same(accounts: Sequence_[Sequence_[int]], quantum: int) -> None:
    """Shreedhar and Varghese, lemma 2: what two accounts got, while both waited all the time, differs by less
    than a quantum and twice the largest cost."""
    items = [
        Item(str(name), (float(number), number * 10 + name), cost_tokens=1 + cost)
        for name, queued in enumerate(accounts)
        for number, cost in enumerate(queued)
    ]
    left = Counter(item.account for item in items)
    got = Counter({item.account: 0 for item in items})
    most = max(item.cost_tokens for item in items)
    for item in drained(queue_of(*items, quantum=quantum)):
        waiting = [got[name] for name in left if left[name]]
        assert max(waiting) - min(waiting) <= quantum + 2 * most
        got[item.account] += item.cost_tokens
        left[item.account] -= 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 2), st.integers(0, 30), st.booleans()
        )
    )
)
def test_urgency_and_what_was_charged_come_first(
    history: Sequence_[tuple[str, int, int, int, bool]],
) -> None:
    queue, waiting = queue_of(), list[Item]()
    for number, (account, arrival, priority, cost, takes) in enumerate(history):
        item = Item(account, (arrival + 5.0 * priority, number), cost, priority)
        queue.add(item)
        waiting.append(item)
        assert list(queue) == sorted(waiting, key=lambda one: one.rank) and len(queue) == len(waiting)
        taken = queue.next()
        assert taken is not None
        first = {one.account: one for one in sorted(waiting, key=lambda one: one.rank, reverse=True)}
        assert first[taken.account] is taken
        for other in first.values():
            assert not (other.priority < taken.priority and other.rank < taken.rank)
        if takes:
            queue.take(taken)
            waiting.remove(taken)
    for item in waiting:
        queue.remove(item)
    assert len(queue) == 0 and queue.next() is None
    assert all(account.deficit_tokens >= 0 for account in queue._accounts.values())


def test_what_is_passed_over_does_not_hold_up_those_behind_it() -> None:
    first, second, other = Item("a", (0.0, 0)), Item("a", (1.0, 1)), Item("b", (2.0, 2))
    queue = queue_of(first, second, other)
    assert queue.next(lambda item: item is first) is second
    queue.take(second)
    assert queue.next(lambda item: item is first) is other
    earlier = Item("a", (-1.0, 3))
    queue.add(earlier)
    assert queue.next(lambda item: item in (first, earlier)) is other
    queue.remove(earlier)
    queue.take(other)
    assert queue.next(lambda item: item is first) is None
    queue.begin()
    assert queue.next() is first


def test_what_was_never_added_is_not_removed() -> None:
    with pytest.raises(ProgramError, match="never added"):
        queue_of(Item("a", (0.0, 0))).remove(Item("a", (0.0, 0)))
    with pytest.raises(ProgramError, match="never added"):
        queue_of().remove(Item("a", (0.0, 0)))


def test_an_account_with_a_long_queue_leaves_slots_to_another() -> None:
    engine = scheduler(pages=200, slots=2, budget=16)
    for id in range(100):
        engine.add(sequence(id, 4, 4, account="many", cost_tokens=80, arrival_s=0.0))
    step(engine)
    single = sequence(100, 4, 4, account="single", cost_tokens=80, arrival_s=50.0)
    engine.add(single)
    assert engine.waiting_count == len(engine.waiting) == 99
    for running in engine.running:
        engine.finish(running)
    step(engine)
    assert single in engine.running


def test_a_running_prefill_is_not_held_up_by_newcomers_of_another_account() -> None:
    engine = scheduler(pages=200, slots=8, budget=8)
    late = sequence(100, 40, 4, account="late", arrival_s=50.0)
    engine.add(late)
    step(engine)
    for id in range(10):
        engine.add(sequence(id, 8, 4, account="many", arrival_s=49.0))
    assert step(engine) == [(100, 8, 8, False)]
    urgent = sequence(11, 4, 4, account="urgent", arrival_s=49.0, priority=-1)
    engine.add(urgent)
    assert step(engine)[0][0] == 11


def test_a_preempted_sequence_is_charged_once() -> None:
    engine = scheduler(pages=64, slots=1, budget=64)
    first = sequence(0, 4, 4, account="a", cost_tokens=8)
    engine.add(first)
    step(engine)
    assert first.cost_tokens == 0
    engine.pause(first)
    for id in range(1, 5):
        engine.add(sequence(id, 4, 4, account="b", cost_tokens=8, arrival_s=0.0))
    engine.resume(first)
    step(engine)
    assert engine.running == (first,)


def test_candidates_are_what_runs_and_the_first_of_each_account():
    engine = scheduler(budget=8, slots=1)
    engine.add(sequence(0, 4))
    step(engine)
    for id, account in enumerate("aab", 1):
        engine.add(sequence(id, 4, account=account))
    assert [one.id for one in engine.candidates] == [0, 1, 3]
