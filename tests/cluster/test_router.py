"""Routing as a function of what the front knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.cost_model import CostModel
from headrace.cluster.disaggregation import MoveCosts, PrefillPlan, plan_prefill
from headrace.cluster.prefix_index import PrefixIndex
from headrace.cluster.router import POLICIES, Capacity, Policy, RoutedRequest, Router
from headrace.errors import Overloaded

COSTS = CostModel(step_s=0.005, prefill_s=1e-4, row_s=1e-4, pair_s=1e-9)
CAPACITY = Capacity(max_batch_tokens=512, max_num_seqs=8, kv_tokens=8192)
GROUP = 64


def router(policy: Policy, replicas: int = 3) -> Router:
    made = Router(policy, COSTS, group_tokens=GROUP)
    for number in range(replicas):
        made.add(number, CAPACITY)
    return made


def send(to: Router, request: RoutedRequest) -> int:
    choice = to.choose(request)
    to.sent(request, choice)
    return choice.replica


def test_kv_goes_to_the_holder_until_it_is_too_busy() -> None:
    one = router("kv")
    first = send(one, RoutedRequest(0, 1000, (1, 2, 3)))
    one.first_token(0)
    one.ended(0)
    again = one.choose(RoutedRequest(1, 1000, (1, 2, 9)))
    assert (again.replica, again.cached_tokens) == (first, 2 * GROUP)
    for number in range(2, 8):  # long prompts that wait
        one.sent(RoutedRequest(number, 4000), again)
    assert one.choose(RoutedRequest(9, 1000, (1, 2, 9))).replica != first


def test_round_robin_takes_turns_and_session_stays() -> None:
    turns = router("round-robin")
    assert [send(turns, RoutedRequest(number, 10)) for number in range(6)] == [0, 1, 2, 0, 1, 2]
    session = router("session")
    homes = {
        name: send(session, RoutedRequest(number, 10, (), name)) for number, name in enumerate("abcdefgh")
    }
    assert len(set(homes.values())) > 1
    for number, name in enumerate("abcdefgh"):
        assert send(session, RoutedRequest(100 + number, 10, (), name)) == homes[name]
    session.remove(homes["a"])
    for number, name in enumerate("bcdefgh"):  # rendezvous: the others stay where they are
        if homes[name] != homes["a"]:
            assert send(session, RoutedRequest(200 + number, 10, (), name)) == homes[name]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replica_that_drains_gets_nothing(policy: Policy) -> None:
    one = router(policy, 2)
    one.drain(0)
    assert {send(one, RoutedRequest(number, 100, (number, 7))) for number in range(5)} == {1}
    with pytest.raises(Overloaded):
        one.choose(RoutedRequest(9, 100), frozenset({1}))


@given(st.lists(st.tuples(st.sampled_from(["send", "first", "end"]), st.integers(0, 9)), max_size=60))
def test_counts_are_those_of_the_requests_under_way(steps: list[tuple[str, int]]) -> None:
    one, routed, streams = router("kv"), dict[int, tuple[int, int]](), set[int]()
    for what, number in steps:
        if what == "send" and number not in routed:
            request = RoutedRequest(number, 100 + number, (number % 3, number % 2))
            routed[number] = send(one, request), request.prompt_tokens
        elif what == "first" and number in routed:
            one.first_token(number)
            streams.add(number)
        elif what == "end":
            one.ended(number)
            routed.pop(number, None)
            streams.discard(number)
        for replica in one.replicas.values():
            own = {key: tokens for key, (where, tokens) in routed.items() if where == replica.number}
            assert replica.requests == len(own)
            assert replica.streams == len(streams & own.keys())
            assert replica.stream_tokens == sum(own[key] for key in streams & own.keys())
            assert 0 <= replica.unread_tokens <= replica.unread_held
            assert replica.unread_held == sum(own[key] for key in own.keys() - streams)


SLOW = CostModel(step_s=0.02, prefill_s=4e-4, row_s=4e-4, pair_s=4e-9)


def test_costs_are_the_replicas_own_or_the_others_or_assumed() -> None:
    one = router("kv")
    assert one.costs(0) == (COSTS, "assumed")
    one.measured(1, SLOW)
    assert one.costs(1) == (SLOW, "measured") and one.costs(0) == (SLOW, "others")
    one.measured(1, None)
    assert one.costs(1) == (COSTS, "assumed")
    one.measured(2, SLOW)
    one.remove(2)
    assert one.costs(0) == (COSTS, "assumed")


def test_a_slow_replica_gets_as_much_as_it_can_do() -> None:
    one = router("kv", 2)
    one.measured(0, COSTS)
    one.measured(1, SLOW)
    sent = [send(one, RoutedRequest(number, 100)) for number in range(100)]
    assert 70 <= sent.count(0) <= 85, "four times as fast: about 80"
    waits = [one.choose(RoutedRequest(1000, 100), frozenset({other})).ttft_s for other in (0, 1)]
    assert waits[0] == pytest.approx(waits[1], rel=0.2)


def test_what_an_index_does_not_know_costs_time_alone() -> None:
    """Evictions of a replica are not told: its next request puts the index right."""
    index = PrefixIndex()
    one = Router("kv", COSTS, group_tokens=GROUP, index=index)
    one.add(0, CAPACITY)
    one.add(1, CAPACITY)
    home = send(one, RoutedRequest(0, 1000, (1, 2, 3)))
    one.ended(0)
    index.add(home, 8192)  # its increments are lost
    again = one.choose(RoutedRequest(1, 1000, (1, 2, 3)))
    assert again.cached_tokens == 0
    one.sent(RoutedRequest(1, 1000, (1, 2, 3)), again)
    one.ended(1)
    assert one.choose(RoutedRequest(2, 1000, (1, 2, 3))).cached_tokens == 3 * GROUP


def planned(streams: int, unread: int, prompt: int = 2000, moves: MoveCosts | None = None) -> PrefillPlan:
    """Replica 0 reads prompts and has some that wait; replica 1 decodes so many streams."""
    one = router("kv", 2)
    for number in range(streams + unread):
        request = RoutedRequest(number, 200)
        there = one.choose(request, frozenset({0 if number < streams else 1}))
        one.sent(request, there)
        if number < streams:
            one.first_token(number)
    return plan_prefill(
        *(one, RoutedRequest(99, prompt)),
        decode=frozenset({0}),
        prefill=frozenset({1}),
        moves=moves or MoveCosts(),
    )


def test_prompts_are_read_apart_where_that_costs_less() -> None:
    assert not planned(streams=0, unread=0).is_apart, "nobody would wait: the pages need not move"
    loaded = planned(streams=4, unread=0)
    assert loaded.is_apart and "where 4 streams would wait 22" in loaded.why
    assert "prompt read by replica 0" in loaded.why
    assert planned(streams=1, unread=0).is_apart
    assert not planned(streams=1, unread=8, prompt=500).is_apart, "those for prompts are busy"
    assert not planned(streams=4, unread=0, moves=MoveCosts(start_s=5.0)).is_apart, "a slow network"
    short = planned(streams=4, unread=0, prompt=GROUP - 1)
    assert not short.is_apart and short.why == ""


def test_of_a_thousand_replicas_a_holder_is_found() -> None:
    one = router("kv", 1000)
    home = send(one, RoutedRequest(0, 1000, (1, 2, 3, 4)))
    one.ended(0)
    assert one.choose(RoutedRequest(1, 1000, (1, 2, 3, 4))).replica == home
