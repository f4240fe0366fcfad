"""What of a text counts as its answer."""

from __future__ import annotations

import pytest

from headrace.chat.answer_span import AnswerSpan
from headrace.engine.scaling.answer_extraction import extract_of
from headrace.engine.scaling.options import Candidate, Ranking, Scaling, Vote, scaling_of
from headrace.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 4. No: 42", "42"),
        ("$1,234,567.50 in all.", "1234567.5"),
        ("3.0", "3"),
        ("007", "7"),
        ("-0.0", "0"),
        ("between -3 and 10-4", "4"),
        ("x = -12.250.", "-12.25"),
        ("1,2,3", "3"),
        ("1,2345", "2345"),
        ("the end...42", "42"),
        ("٣", None),
        ("none", None),
    ],
)
def test_the_last_number_in_one_form(text: str, number: str | None) -> None:
    assert extract_of(Vote("last_number"))(text) == number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} then \boxed{ \frac{1}{2} }.", r"\frac{1}{2}"),
        (r"\boxed{7} and \boxed{8", "7"),
        (r"\boxed{a\boxed{b}}", "b"),
        (r"\boxed{" * 2000, None),
        ("boxed{3}", None),
    ],
)
def test_the_last_box_that_is_closed(text: str, found: str | None) -> None:
    assert extract_of(Vote("boxed"))(text) == found


@pytest.mark.parametrize(
    ("text", "pointer", "found"),
    [
        ('{"answer": "red", "n": 1}', "/answer", "red"),
        ('{"a": [1, {"b": 2.0}]}', "/a/1/b", "2.0"),
        ('{"a/b": {"~": true}}', "/a~1b/~0", "true"),
        ('{"b": 1, "a": null}', "", '{"a": null, "b": 1}'),
        ('{"a": [1]}', "/a/01", None),
        ('{"a": [1]}', "/a/1", None),
        ('{"a": 5}', "/a/b", None),
        ('{"a": "text"}', "/a/0", None),
        ('{"a": 5', "/a", None),
        ("[" * 100_000, "/0", None),
        ('{"a": ' + "9" * 5000 + "}", "/a", None),
    ],
)
def test_what_a_pointer_finds(text: str, pointer: str, found: str | None) -> None:
    assert extract_of(Vote("json_pointer", pointer))(text) == found


def test_texts_patterns_and_functions() -> None:
    assert extract_of(Vote("text"))(" red\n") == "red"
    assert extract_of(Vote("text"))(" \n") is None
    assert extract_of(Vote("regex", r"is (\w+)"))("it is red, is blue") == "blue"
    assert extract_of(Vote("function", function=str.upper))("a") == "A"
    with pytest.raises(InvalidRequest, match="the function failed: ZeroDivisionError"):
        extract_of(Vote("function", function=lambda text: str(1 / 0)))("a")
    with pytest.raises(InvalidRequest, match="gave int"):
        extract_of(Vote("function", function=len))("a")  # type: ignore[arg-type]


def test_the_answer_comes_after_the_reasoning() -> None:
    place = AnswerSpan("</think>", "<think>", wrap=("<r>", "</r>"))
    assert place.find("<think>1</think>no</think> <r>2</r>\n") == "2"
    assert place.find("\n<think>1") is None
    assert place.find("3") == "3"
    assert AnswerSpan("</think>", starts_in_reasoning=True).find("still at it") is None


def test_what_makes_no_sense_is_refused() -> None:
    for vote, cause in [
        ("last", "choose one of text, last_number, boxed, regex, json_pointer"),
        ("regex", "need a pattern"),
        ({"extract": "boxed", "pattern": "x"}, "need a pattern"),
        ({"extract": "json_pointer", "pattern": "a"}, "does not begin with /"),
        ({"extract": "regex", "pattern": "("}, "missing \\)"),
        ({"extract": "text", "more": "x"}, "takes extract and pattern"),
        ({"extract": 5}, "takes extract and pattern"),
        ("function", "a function goes with"),
        (7, "takes extract and pattern"),
    ]:
        with pytest.raises(InvalidRequest, match=cause) as caught:
            scaling_of(vote)
        assert caught.value.param == "vote"
    with pytest.raises(InvalidRequest, match="best_by is 'length'"):
        scaling_of(None, "length")
    with pytest.raises(InvalidRequest, match="vote and best_by both"):
        scaling_of("text", "mean_logprob")
    for most in (0, True, 1.5):
        with pytest.raises(InvalidRequest, match="max_total_tokens is"):
            scaling_of(None, None, most)  # type: ignore[arg-type]


def test_what_callers_write() -> None:
    assert scaling_of() is None
    assert scaling_of("boxed") == Scaling(vote=Vote("boxed"))
    assert scaling_of(None, "sum_logprob", 9, keep=2) == Scaling(
        rank=Ranking("sum_logprob", 2), max_total_tokens=9
    )
    longest = scaling_of(None, len)
    assert longest is not None and longest.local and longest.rank is not None
    assert longest.rank.scorer is not None
    assert longest.rank.scorer([Candidate("abc", (1,), "stop"), Candidate("a", (1,), "stop")]) == [3, 1]
    assert not Scaling(vote=Vote("text"), max_total_tokens=4).local
