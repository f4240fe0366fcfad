"""What lookup would have brought, replayed over an answer that is known."""

from __future__ import annotations

from headrace.engine.speculative.lookup_replay import DEPTH, replay_lookup


def test_an_answer_that_repeats_the_prompt_would_have_been_drafted() -> None:
    prompt = list(range(100, 160))
    found = replay_lookup([*prompt, *prompt[:8]], prompt[8:48])
    assert found.tokens == 40 and found.accepted == found.drafted
    assert found.accepted >= 40 - -(-40 // (DEPTH + 1)) - 1, "all but a token of each step"


def test_an_answer_that_says_something_new_would_not() -> None:
    assert replay_lookup(range(50), range(1000, 1040)).accepted == 0
    empty = replay_lookup([], [])
    assert (empty.tokens, empty.drafted, empty.accepted) == (0, 0, 0)


def test_no_token_beyond_the_end_counts() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 8
    found = replay_lookup(text, text[:5])
    assert found.accepted <= 4
