"""What a stranger's texts, findings and recognizers can make the search for personal data cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.custom import MAX_CONTEXT, CustomPattern, CustomRecognizer, Steps
from headrace.tasks.pii.operators import MAX_NEW_VALUE, read_operator
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.spans import distinct, resolved
from headrace.tasks.task_limits import MAX_SEARCHED, check_searched

TEXT = st.text(st.sampled_from("aé1 .-\n"), max_size=24)


def finding(start: int, end: int, score: float = 0.5, label: str = "A") -> RecognizerResult:
    return RecognizerResult(start, end, label, score, "", "", score, None)


@st.composite
def texts_with_findings(draw: st.DrawFn) -> tuple[str, list[RecognizerResult]]:
    text = draw(TEXT)
    place = st.integers(0, len(text))
    one = st.builds(
        lambda ends, score, label: finding(min(ends), max(ends), score, label),
        st.tuples(place, place),
        st.sampled_from([0.2, 0.5, 1.0]),
        st.sampled_from("AB"),
    )
    return text, draw(st.lists(one, max_size=8))


def best_first(findings: list[RecognizerResult]) -> list[RecognizerResult]:
    return sorted(findings, key=lambda one: (-one.score, one.start - one.end, one.start, one.label))


def by_characters(text: str, findings: list[RecognizerResult]) -> list[tuple[int, int, str]]:
    """The definition of `resolved`: each character is of the best finding that covers it."""
    taken, kept = [False] * len(text), list[tuple[int, int, str]]()
    for one in best_first(findings):
        place = one.start
        while place < one.end:
            start = place
            while place < one.end and not taken[place]:
                place += 1
            end = place
            while start < end and text[start].isspace():
                start += 1
            while start < end and text[end - 1].isspace():
                end -= 1
            if any(map(str.isalnum, text[start:end])):
                taken[start:end] = [True] * (end - start)
                kept.append((start, end, one.label))
            place += 1
    return sorted(kept)


@given(texts_with_findings())
def test_findings_are_resolved_as_by_definition(given: tuple[str, list[RecognizerResult]]) -> None:
    text, findings = given
    assert [(one.start, one.end, one.label) for one in resolved(text, findings)] == by_characters(
        text, findings
    )


@given(texts_with_findings())
def test_distinct_findings_are_as_by_definition(given: tuple[str, list[RecognizerResult]]) -> None:
    kept: list[RecognizerResult] = []
    for one in best_first(given[1]):
        overlaps = any(
            one.label == other.label and one.start < other.end and other.start < one.end for other in kept
        )
        if one.start < one.end and not overlaps:
            kept.append(one)
    assert distinct(given[1]) == sorted(kept, key=lambda one: (one.start, one.end, one.label))


COUNT = 10_000
SHAPES: dict[str, tuple[str, Callable[[int], RecognizerResult]]] = {
    "blanks": (" ", lambda index: finding(0, 100 * COUNT - index)),
    "growing blanks": (" ", lambda index: finding(0, 10 * index + 1, index / COUNT)),
    "punctuation": (".", lambda index: finding(index, 100 * COUNT - index)),
    "words under long ones": (
        "a ",
        lambda index: (
            finding(index, index + 1, 1.0) if index < COUNT // 2 else finding(0, 100 * COUNT - index)
        ),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_findings_that_overlap_take_as_long_as_others(shape: str) -> None:
    """Relative to as many beside each other; it was thousands of times as long."""
    sign, make = SHAPES[shape]
    text = (sign * 100 * COUNT)[: 100 * COUNT]

    def seconds(findings: list[RecognizerResult]) -> float:
        start_s = time.perf_counter()
        resolved(text, findings)
        distinct(findings)
        return time.perf_counter() - start_s

    beside = [finding(index * 100, index * 100 + 50) for index in range(COUNT)]
    usual_s = max(seconds(beside) for _ in range(3))
    assert seconds([make(index) for index in range(COUNT)]) < 20 * usual_s + 0.5


def test_recognizers_of_a_request_share_their_steps() -> None:
    steps = Steps()
    pattern = [CustomPattern(regex="a{1,50}b")]
    custom = [CustomRecognizer(f"E{index}", pattern, param="p", steps=steps) for index in range(32)]
    text = "a" * 20_000
    Analyzer([custom[0].entity], custom=[CustomRecognizer("E0", pattern)]).find(text)
    with pytest.raises(InvalidRequest, match=r"steps to search the text, over 20,000,000"):
        Analyzer([one.entity for one in custom], custom=custom).find(text)


def test_words_of_context_are_charged() -> None:
    words = [f"word{index}" for index in range(MAX_CONTEXT)]
    with pytest.raises(InvalidRequest, match="words of context"):
        CustomRecognizer("E", words=["a"], context=[*words, "one more"])
    one = CustomRecognizer("E", [CustomPattern(regex="a", score=0.3)], context=words)
    with pytest.raises(InvalidRequest, match="over 20,000,000"):
        Analyzer(["E"], custom=[one]).find("a " * 10_000)
    with pytest.raises(InvalidRequest, match=r"context has 2,000 characters") as refused:
        Analyzer(context=["a" * 2000])
    assert refused.value.param == "context"


def test_what_takes_an_entitys_place_is_short() -> None:
    fields: dict[str, Any] = {"type": "replace", "new_value": "x" * MAX_NEW_VALUE}
    assert read_operator(fields).new_value == fields["new_value"]
    with pytest.raises(InvalidRequest, match="new_value has 257 characters"):
        read_operator(fields | {"new_value": "x" * 257})


def test_texts_are_bounded_together() -> None:
    check_searched(["a" * (MAX_SEARCHED - 1), "b"], "input")
    with pytest.raises(InvalidRequest, match=r"input has 2,000,001 characters"):
        check_searched(["a" * MAX_SEARCHED, "b"], "input")
