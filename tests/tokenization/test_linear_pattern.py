"""Patterns find what Python's `re` finds, and none of them takes long."""

from __future__ import annotations

import random
import re

import pytest

from headrace.errors import InvalidRequest
from headrace.tokenization.linear_pattern import MAX_CHARACTERS, LinearPattern

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
REPEATS = ["", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{,2}?"]


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
    return not re.search(r"[*?^$]|\\b|\{,", source.replace("(?", "("))


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_what_a_backtracking_search_finds(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        before, group, after = (pattern(rng) for _ in range(3))
        for source in (before, f"{before}({group}){after}", f"(?m){before}", f"(?s)({group})|{after}"):
            found = LinearPattern(source)
            for _ in range(5):
                text = "".join(rng.choices("ab1 xA\n-", k=rng.randrange(15)))
                assert found.last(text) == by_backtracking(source, text), (source, text)


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
        ("(?:(?:){2000}){60000}a", "ba", "a"),
    ],
)
def test_patterns_of_answers(source: str, text: str, found: str | None) -> None:
    assert LinearPattern(source).last(text) == found


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("(", "unterminated"),
        ("(a)(b)", "several groups"),
        (r"(a)\1", "groupref is not supported"),
        ("(?=a)", "assert is not supported"),
        ("(?>a)", "atomic_group is not supported"),
        ("a*+", "possessive_repeat is not supported"),
        (r"(?a)\w", "flag a"),
        ("a{60000}", "2,000 parts"),
        ("(?:(?:a{99}){99}){99}", "2,000 parts"),
        ("a{1,99999999999999}", "too large"),
        ("a" * (MAX_CHARACTERS + 1), "at most 1,000"),
    ],
)
def test_what_cannot_be_searched_is_refused(source: str, cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause) as caught:
        LinearPattern(source, param="vote")
    assert caught.value.param == "vote"


def test_a_bomb_ends_after_a_fixed_number_of_steps() -> None:
    bomb, text = LinearPattern("(?:a|a)*?(?:a*)*b$|(c)", param="vote"), "a" * 100_000
    with pytest.raises(InvalidRequest, match="more than 500,000 steps"):
        bomb.last(text)
