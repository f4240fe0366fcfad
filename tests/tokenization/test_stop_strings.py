"""Stop strings: the streamed answer equals a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tokenization.stop_strings import StopMatcher


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The stop that ends first (of those the longest), found by trying every end."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def streamed(chunks: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include)
    released = ""
    for chunk in chunks:
        text, stop = matcher.push(chunk)
        released += text
        if stop is not None:
            return released, stop
    return released + matcher.flush(), None


letters = st.text(alphabet="ab\n", max_size=12)


@settings(max_examples=500)
@given(
    chunks=st.lists(letters, max_size=12),
    stops=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=6),
    include=st.booleans(),
)
def test_any_chunking_equals_a_search_in_the_whole_text(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    assert streamed(chunks, stops, include) == naive("".join(chunks), stops, include)


@settings(max_examples=300)
@given(chunks=st.lists(letters, max_size=10), stops=st.lists(letters.filter(bool), min_size=1, max_size=4))
def test_only_what_may_begin_a_stop_is_held_back(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = released = ""
    for chunk in chunks:
        seen += chunk
        text, stop = matcher.push(chunk)
        released += text
        if stop is not None:
            return
        held = seen[len(released) :]
        assert seen == released + held
        begins = [n for n in range(len(seen) + 1) if any(s.startswith(seen[len(seen) - n :]) for s in stops)]
        assert len(held) == max(begins)


def test_a_stop_across_token_borders() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.push("text<") == ("text", None)
    assert matcher.push("/e") == ("", None)
    assert matcher.push("nd> more") == ("", "</end>")
    assert matcher.push("later") == ("", "</end>")
    assert matcher.flush() == ""


def test_a_false_start_comes_out() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.push("a</en") == ("a", None)
    assert matcher.push("x") == ("</enx", None)
    assert matcher.push("<") == ("", None)
    assert matcher.flush() == "<"


def test_include_keeps_the_stop_string() -> None:
    assert StopMatcher(["ab"], include=True).push("xabab") == ("xab", "ab")


def test_the_first_to_end_wins_then_the_longest() -> None:
    assert StopMatcher(["abcd", "bc"]).push("abcd") == ("a", "bc")
    assert StopMatcher(["c", "abc"]).push("xabc") == ("x", "abc")


def test_without_stops_nothing_is_held() -> None:
    assert StopMatcher([]).push("any") == ("any", None)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher([""])


def test_work_is_linear_in_the_text() -> None:
    """The worst text for a search that starts over: every step fails at the last character."""

    class Counting(StopMatcher):
        steps = 0

        def _step(self, character: str) -> None:
            Counting.steps += 1
            super()._step(character)

    matcher = Counting(["a" * 500 + "b"])
    text = "a" * 20_000
    released = "".join(matcher.push(character)[0] for character in text) + matcher.flush()
    assert released == text
    assert Counting.steps == len(text)
