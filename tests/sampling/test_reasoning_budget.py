"""Reasoning budgets, token by token: what is counted, when the end is forced, where markers may occur."""

from __future__ import annotations

import random

import pytest

from headrace.sampling.reasoning_budget import ReasoningBudget, ReasoningState

LETTERS = {code: bytes([code]) for code in range(256)}
SPECIAL = {300: b"<think>", 301: b"</think>", 302: b"</think>\n", 303: b"a</thi"}
BYTES = LETTERS | SPECIAL


def limit(max_tokens: int | None, **more: object) -> ReasoningBudget:
    given = {"start": b"<think>", "end": b"</think>", "closing": (301,)} | more
    return ReasoningBudget(max_tokens=max_tokens, **given)  # type: ignore[arg-type]


def forced_at(thinking: ReasoningState, tokens: list[int]) -> list[int]:
    """Number of tokens before each forced token; forced tokens are appended too."""
    places = []
    for count, token in enumerate(tokens):
        while thinking.forced is not None:
            places.append(count)
            thinking.take(thinking.forced)
        thinking.take(token)
    if thinking.forced is not None:
        places.append(len(tokens))
    return places


@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_the_end_comes_after_exactly_so_many_tokens(budget: int) -> None:
    assert forced_at(
        ReasoningState(limit(budget, starts_in_reasoning=True), BYTES.__getitem__), [97] * 12
    ) == [budget]
    spelled = [300, *[97] * 12]
    assert forced_at(ReasoningState(limit(budget), BYTES.__getitem__), spelled) == [budget + 1]
    letters = [*b" \n<think>", *[97] * 12]
    assert forced_at(ReasoningState(limit(budget), BYTES.__getitem__), letters) == [budget + 9]


@pytest.mark.parametrize("end", [[301], [302], list(b"</think>"), [303, *b"nk>"]])
def test_reasoning_that_ends_by_itself_is_not_changed(end: list[int]) -> None:
    tokens = [97] * 5 + end + [97] * 30
    assert (
        forced_at(ReasoningState(limit(len(end) + 5, starts_in_reasoning=True), BYTES.__getitem__), tokens)
        == []
    )


def test_text_is_not_reasoning() -> None:
    assert forced_at(ReasoningState(limit(0), BYTES.__getitem__), [97, 300, 97, 97]) == []
    assert forced_at(ReasoningState(limit(0), BYTES.__getitem__), [*b"<thing>", 300, 97]) == []


def test_a_marker_of_several_tokens_is_forced_completely() -> None:
    thinking = ReasoningState(
        limit(2, starts_in_reasoning=True, closing=tuple(b"</think>")), BYTES.__getitem__
    )
    for token in b"ab":
        thinking.take(token)
    for token in b"</think>":
        assert thinking.forced == token
        thinking.take(token)
    assert thinking.forced is None


def test_repeated_reasoning_is_counted_together() -> None:
    again = limit(5, start=b"<think>", reopens=True)
    tokens = [97, 300, 97, 97, 97, 301, 97, 97, 300, 97, 97, 97, 97, 300, 97]
    # Three tokens, then two; the third time none is left.
    assert forced_at(ReasoningState(again, BYTES.__getitem__), tokens) == [11, 14]


def test_never_more_than_the_budget_whatever_is_generated() -> None:
    random_ = random.Random(5)
    pool = [*b"<think>/a \n", 300, 301, 302, 303]
    for _ in range(2000):
        budget, starts_in_reasoning = random_.randrange(6), random_.random() < 0.5
        thinking = ReasoningState(limit(budget, starts_in_reasoning=starts_in_reasoning), BYTES.__getitem__)
        taken: list[int] = []
        for _ in range(30):
            token = random_.choice(pool) if thinking.forced is None else thinking.forced
            taken.append(token)
            thinking.take(token)
        assert reasoning_tokens(taken, starts_in_reasoning=starts_in_reasoning) <= budget


def drawn(thinking: ReasoningState, token: int, *, stops: bool = False) -> list[int]:
    """The tokens appended when a token is drawn: the token or its replacement, and the forced ones after
    it.
    """
    taken = [thinking.instead_of(token, stops=stops)]
    thinking.take(taken[0])
    while thinking.forced is not None:
        taken.append(thinking.forced)
        thinking.take(taken[-1])
    return taken


def test_an_early_end_is_replaced() -> None:
    wait = tuple(b"Wait")
    least = limit(None, starts_in_reasoning=True, min_tokens=6, continuation=wait)
    thinking = ReasoningState(least, BYTES.__getitem__)
    assert drawn(thinking, 97) == [97]
    assert drawn(thinking, 301) == [*wait]  # five tokens now
    assert drawn(thinking, 1, stops=True) == [*wait]
    assert drawn(thinking, 302) == [302]
    assert drawn(thinking, 301) == [301] and drawn(thinking, 1, stops=True) == [1]
    spelled = ReasoningState(least, BYTES.__getitem__)
    said = b"".join(BYTES[token] for letter in b"a</think>b" for token in drawn(spelled, letter))
    assert said == b"a</think>b"  # the marker's last letter comes after six tokens
    early = ReasoningState(
        limit(None, starts_in_reasoning=True, min_tokens=9, continuation=wait), BYTES.__getitem__
    )
    said = b"".join(BYTES[token] for letter in b"a</think>b" for token in drawn(early, letter))
    assert said == b"a</thinkWaitb"


def test_nothing_is_replaced_outside_the_reasoning() -> None:
    least = limit(9, min_tokens=9, continuation=(87,))
    thinking = ReasoningState(least, BYTES.__getitem__)
    assert drawn(thinking, 1, stops=True) == [1]
    thinking = ReasoningState(least, BYTES.__getitem__)
    assert drawn(thinking, 300) == [300]
    assert [drawn(thinking, 301) for _ in range(9)] == [[87]] * 8 + [[87, 301]]
    assert drawn(thinking, 301) == [301]


def reasoning_tokens(tokens: list[int], *, starts_in_reasoning: bool) -> int:
    """Counted from the whole text: tokens after the one that completes the start marker and before the
    end.
    """
    text, starts = b"", []
    for token in tokens:
        starts.append(len(text))
        text += BYTES[token]
    begin = 0
    if not starts_in_reasoning:
        if not text.lstrip().startswith(b"<think>"):
            return 0
        begin = text.index(b"<think>") + len(b"<think>")
    end = text.find(b"</think>", begin)
    end = len(text) if end < 0 else end
    return sum(
        begin <= start and start + len(BYTES[token]) <= end
        for start, token in zip(starts, tokens, strict=True)
    )
