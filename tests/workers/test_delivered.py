"""What a reader has of a request's output, over several runs that cut it differently."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    PromptLogprobs,
    RequestFinished,
    Timing,
    TokenLogprob,
    Usage,
)
from headrace.workers.delivered import DeliveredOutput, Diverged
from tiny import Outcome

DONE = RequestFinished(Usage(1, 1, 0), Timing(0.0, 0.0, 0.0), 0)
PROMPT = PromptLogprobs((TokenLogprob(1, -1.0),))
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12)


def a_run(data: st.DataObject, choices: list[list[int]], lag: int) -> list[list[EngineEvent]]:
    """The events of a run, step by step: one to three tokens each, text `lag` tokens late."""
    steps: list[list[EngineEvent]] = [[PROMPT]]
    for number, tokens in enumerate(choices):
        texts, at = [f"<{token}>" for token in tokens], 0
        while at < len(tokens):
            end = min(len(tokens), at + data.draw(st.integers(1, 3)))
            last = end == len(tokens)
            begin_text = max(0, at - lag)
            text = "".join(texts[begin_text : len(tokens) if last else max(0, end - lag)])
            steps.append([Delta(number, text, tuple(tokens[at:end]))])
            at = end
        steps[-1].append(ChoiceFinished(number, "length"))
    return [*steps, [DONE]]


@given(st.data())
def test_a_reader_gets_the_output_once_however_often_it_is_computed(data: st.DataObject) -> None:
    choices = data.draw(st.lists(TOKENS, min_size=1, max_size=3))
    lag = data.draw(st.integers(0, 2))
    found, output = Outcome(), DeliveredOutput()
    for number in range(data.draw(st.integers(1, 4))):
        if number:
            output.begin_again()
        steps = a_run(data, choices, lag)
        for step in steps[: data.draw(st.integers(0, len(steps) - 1))]:
            for event in output.take(step):
                found.add(event)
    output.begin_again()
    for step in a_run(data, choices, lag):
        for event in output.take(step):
            found.add(event)
    assert found.tokens == dict(enumerate(choices))
    assert found.text == {n: "".join(f"<{t}>" for t in tokens) for n, tokens in enumerate(choices)}
    assert set(found.ends) == set(range(len(choices)))
    assert (found.prompts, found.done) == ([PROMPT], DONE)
    assert output.tokens == sum(map(len, choices))


@pytest.mark.parametrize(
    "second",
    [
        [Delta(0, "a", (1,)), Delta(0, "x", (9,))],  # another token
        [Delta(0, "a", (1,)), ChoiceFinished(0, "stop")],  # it ends earlier
        [Delta(0, "abc", (1, 2, 3))],  # it ends later
    ],
)
def test_another_output_is_noticed(second: list[EngineEvent]) -> None:
    output = DeliveredOutput()
    output.take([Delta(0, "ab", (1, 2)), ChoiceFinished(0, "stop")])
    output.begin_again()
    with pytest.raises(Diverged):
        output.take(second)


def test_scores_stay_with_their_tokens() -> None:
    output = DeliveredOutput()
    scores = tuple(TokenLogprob(token, -1.0) for token in (1, 2, 3))
    output.take([Delta(0, "a", (1,), scores[:1])])
    output.begin_again()
    assert output.take([Delta(0, "abc", (1, 2, 3), scores)]) == [Delta(0, "bc", (2, 3), scores[1:])]
