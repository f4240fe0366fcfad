"""Routing as a function of what the front knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.cost_model import CostModel
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


def test_of_a_thousand_replicas_a_holder_is_found() -> None:
    one = router("kv", 1000)
    home = send(one, RoutedRequest(0, 1000, (1, 2, 3, 4)))
    one.ended(0)
    assert one.choose(RoutedRequest(1, 1000, (1, 2, 3, 4))).replica == home
