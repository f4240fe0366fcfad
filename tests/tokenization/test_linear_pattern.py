"""Patterns find what Python's `re` finds, and none of them takes long."""

from __future__ import annotations

import random
import re
import time

import pytest

from headrace.errors import InvalidRequest
from headrace.tokenization.linear_pattern import MAX_CHARACTERS, MAX_STEPS, LinearPattern

ATOMS = [
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\W",
    r"\s",
    "^",
    "$",
    r"\b",
    "x",
    "1",
    r"\n",
    "(?i:A)",
    "[a-c1]",
]
REPEATS = ["", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?"]


def by_backtracking(source: str, text: str) -> str | None:
    """The last of the matches, each searched for where the one before ended."""
    pattern, found, start = re.compile(source), None, 0
    while start <= len(text) and (match := pattern.search(text, start)) is not None:
        found = match[0] if not pattern.groups or match[1] is None else match[1]
        start = match.end() if match.end() > match.start() else match.end() + 1
    return found


def pattern(rng: random.Random, depth: int = 2) -> str:
    parts: list[str] = []
    for _ in range(rng.randint(1, 3)):
        inner = rng.choice(ATOMS)
        if depth and rng.random() < 0.5:
            inner = f"(?:{'|'.join(pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))})"
        # What an empty round of a loop means is the one thing in which engines differ.
        parts.append(inner + rng.choice(REPEATS) if may_not_be_empty(inner) else inner)
    return "".join(parts)


def may_not_be_empty(source: str) -> bool:
    return not re.search(r"[*?^$]|\\b|\{0", source.replace("(?", "("))


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_what_a_backtracking_search_finds(seed: int) -> None:
    rng = random.Random(seed)
    searched = 0
    for _ in range(90):
        before, group, after = (pattern(rng) for _ in range(3))
        for source in (before, f"{before}({group}){after}", f"(?m){before}", f"(?s)({group})|{after}"):
            # In RE2 $ is only the very end of the text.
            same = source if source.startswith("(?m)") else source.replace("$", r"\Z")
            try:
                found = LinearPattern(source)
            except InvalidRequest as error:
                assert "matches the empty text" in str(error), source
                continue
            searched += 1
            for _ in range(5):
                text = "".join(rng.choices("ab1 xA\n-", k=rng.randrange(15)))
                assert found.last(text) == by_backtracking(same, text), (source, text)
    assert searched > 180


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        (r"####\s*(-?[\d,.]+)", "#### 1\nno: #### 42", "42"),
        (r"(?i)answer is:?\s*\(?([a-d])\)?", "The Answer is (A). No, the ANSWER IS: c", "c"),
        (r"<answer>((?:.|\n)*?)</answer>", "<answer>a\nb</answer> <answer>2</answer>", "2"),
        (r"\\boxed\{([^}]*)\}", r"so \boxed{1} or \boxed{x+1}", "x+1"),
        (r"[0-9]+", "12 and 345", "345"),
        (r"yes", "no", None),
        (r"(a)?b", "b", "b"),
        (r"(a)|b", "ab", "b"),
        (r"x(a?)", "xa x", ""),
        (r"\p{L}+", "12 Grüße 水", "水"),
        (r"(?P<name>ü)\b", "aü", None),  # \b is that of ASCII
        (r"[a-z]+", "\ud800 ab", "ab"),
        ("(?:x{30}){33}", "x" * 1980, "x" * 990),
    ],
)
def test_patterns_of_answers(source: str, text: str, found: str | None) -> None:
    assert LinearPattern(source).last(text) == found


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("(", "missing \\)"),
        ("a)(b", "unexpected \\)"),
        ("(a)(b)", "several groups"),
        (r"(a)\1", "invalid escape sequence"),
        (r"a\Z", "invalid escape sequence"),
        ("(?=a)", "invalid perl operator"),
        ("(?>a)", "invalid perl operator"),
        ("a*+", "bad repetition operator"),
        (r"(?a)\w", "invalid perl operator"),
        ("a{60000}", "invalid repetition size"),
        ("(?:(?:a{99}){99}){99}", "invalid repetition size"),
        ("a{1,1001}", "invalid repetition size"),
        (r"(?i)\pL{500}", "too large"),
        ("\ud800", "surrogates not allowed"),
        ("a" * (MAX_CHARACTERS + 1), "at most 1,000"),
        *(
            (source, "matches the empty text")
            for source in ("", "a*", r"\b", "x*$", "(?m)^", r"\Ba?", "a|()")
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(source: str, cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause) as caught:
        LinearPattern(source, param="vote")
    assert caught.value.param == "vote"


@pytest.mark.parametrize("bomb", ["(?:a|a)*?(?:a*)*b$|(c)", "a.*b|a", "[ab]*a[ab]{900}c|a", "a(?:a?){900}"])
def test_the_time_of_a_bomb_is_bounded(bomb: str) -> None:
    """The first texts are searched, in seconds even on a slow machine, and then it is refused."""
    pattern, text, searches = LinearPattern(bomb, param="vote"), "a" * 10_000, 0
    started = time.process_time()
    with pytest.raises(InvalidRequest, match=f"over {MAX_STEPS:,}"):
        while True:
            pattern.last(text)
            searches += 1
    assert searches >= 1
    assert time.process_time() - started < 10
