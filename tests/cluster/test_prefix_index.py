"""The index against a naive one, on random histories; keys against the prefixes that they stand for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.prefix_index import GROUP_TOKENS, PrefixIndex, group_keys

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=5)
STEPS = st.lists(st.tuples(st.integers(0, 3), PROMPTS), max_size=40)


def chained(prompt: list[int]) -> tuple[int, ...]:
    """A key for each beginning."""
    return tuple(hash(tuple(prompt[: end + 1])) for end in range(len(prompt)))


@given(STEPS, PROMPTS, st.integers(1, 12))
def test_matches_are_those_of_a_naive_index(
    steps: list[tuple[int, list[int]]], wanted: list[int], room: int
) -> None:
    index = PrefixIndex()
    naive: dict[int, list[int]] = {number: [] for number in range(4)}  # least recently used first
    for number in naive:
        index.add(number, room)
    for number, prompt in steps:
        keys = chained(prompt)
        index.note(number, keys)
        for key in reversed(keys):
            if key in naive[number]:
                naive[number].remove(key)
            naive[number].append(key)
        naive[number] = naive[number][-room:]
    found = index.matches(chained(wanted))
    for number, held in naive.items():
        length = 0
        while length < len(wanted) and chained(wanted)[length] in held:
            length += 1
        assert found.get(number, 0) == length
        assert index.held(number) == len(held) <= room


def test_a_replica_that_is_gone_holds_nothing() -> None:
    index = PrefixIndex()
    index.add(0, 10)
    index.note(0, (1, 2, 3))
    index.remove(0)
    index.add(0, 10)
    assert index.matches((1, 2, 3)) == {}


def test_keys_are_equal_exactly_for_equal_beginnings_of_one_salt() -> None:
    tokens = list(range(3 * GROUP_TOKENS + 5))
    keys = group_keys(tokens, "a")
    assert len(keys) == 3
    assert group_keys(tokens[: 3 * GROUP_TOKENS], "a") == keys[:2], "the last token is never cached"
    assert set(group_keys(tokens, "b")).isdisjoint(keys)
    other = [*tokens]
    other[GROUP_TOKENS] += 1
    assert group_keys(other, "a")[0] == keys[0]
    assert set(group_keys(other, "a")[1:]).isdisjoint(keys)
