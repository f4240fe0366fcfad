"""Whether a teacher is who it should be: held-out questions, asked twice, whose answers are known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.distil.samples import Prompt
from headrace.errors import HeadraceError

KNOWN = 64
"""Most questions with known answers that are asked."""
TWICE = 16
LEAST_KNOWN = 8
LEAST_SAME = 0.75
LEAST_RIGHT = 0.75
"""The lower end of the 95 % interval (Wilson) of the share of right answers must not be lower."""
_Z = 1.645
_QUESTIONS = (
    ("What is 7 + 5? Answer with the number only.", "12"),
    ("What is 9 times 6? Answer with the number only.", "54"),
    ("What is 100 - 37? Answer with the number only.", "63"),
    ("How many days does a week have? Answer with the number only.", "7"),
    ("How many minutes are in two hours? Answer with the number only.", "120"),
    ("What is half of 48? Answer with the number only.", "24"),
    ("What is the capital of France? Answer with one word.", "Paris"),
    ("What is the capital of Japan? Answer with one word.", "Tokyo"),
    ("Which planet do we live on? Answer with one word.", "Earth"),
    ("What is the opposite of hot? Answer with one word.", "cold"),
    ("What color does blue and yellow paint make? Answer with one word.", "green"),
    ("Which animal barks, a cat or a dog? Answer with one word.", "dog"),
    ("Is ice warmer than steam? Answer yes or no.", "no"),
    ("Is 17 larger than 12? Answer yes or no.", "yes"),
    ("Repeat exactly this word and nothing else: lantern", "lantern"),
    ("Repeat exactly this word and nothing else: orchard", "orchard"),
    ("Write the plural of the English word mouse (the animal). Answer with one word.", "mice"),
    ("Which month comes after March? Answer with one word.", "April"),
    ("What is the first letter of the word zebra? Answer with the letter only.", "z"),
    ("Spell the word cat backwards. Answer with the word only.", "tac"),
)


class WrongTeacher(HeadraceError):
    """A teacher does not answer as it should: nothing is learned from it."""

    remedy = "Look at what it answers, or give --probe FILE with questions of your task and right answers."
    exit_code = 1


class ProbeResult(Struct, frozen=True):
    """Of `asked` questions with known answers so many were `right`, `source` says whose they are; of those
    that were asked `twice` so many had the `same` answer."""

    asked: int
    right: int
    twice: int
    same: int
    source: str


def probe(
    answer: Callable[[Sequence[Prompt]], list[str]],
    known: Sequence[Prompt],
    *,
    source: str,
    least: float = LEAST_RIGHT,
) -> ProbeResult:
    """Ask questions whose answers are known: `known`, which are not trained on, or where these are fewer than
    LEAST_KNOWN general ones. WrongTeacher where too many are wrong, where the same question is answered
    otherwise the second time, or where all answers are the same."""
    questions = [one for one in known if one.answer is not None][:KNOWN]
    if len(questions) < LEAST_KNOWN:
        questions = [Prompt(({"role": "user", "content": ask},), right) for ask, right in _QUESTIONS]
        source = "general questions of headrace"
    first = answer(questions)
    again = answer(questions[:TWICE])
    right = sum(is_right(said, one.answer or "") for said, one in zip(first, questions, strict=True))
    same = sum(normal(one) == normal(other) for one, other in zip(first, again, strict=False))
    found = ProbeResult(len(questions), right, len(again), same, source)
    wrong = next(
        (
            (one.text, said, one.answer)
            for said, one in zip(first, questions, strict=True)
            if not is_right(said, one.answer or "")
        ),
        None,
    )
    example = (
        "" if wrong is None else f"; {wrong[0][:80]!r} got {wrong[1][:80]!r} instead of {wrong[2]!r:.80}"
    )
    if len({normal(one) for one in first}) == 1 and len({one.answer for one in questions}) > 1:
        raise WrongTeacher(f"the teacher gives the same answer to all {len(questions)} questions{example}")
    if same < LEAST_SAME * len(again):
        raise WrongTeacher(
            f"the teacher is inconsistent: of {len(again)} questions that were asked twice at temperature 0"
            f" it gave {same} the same answer"
        )
    if lower_bound(right, len(questions)) < least:
        raise WrongTeacher(
            f"the teacher is wrong: {right} of {len(questions)} answers to {source} are right, which is at"
            f" least {lower_bound(right, len(questions)):.0%} with 95 % confidence, {least:.0%} are"
            f" needed{example}"
        )
    return found


def is_right(said: str, known: str) -> bool:
    """The known answer, in the words of another: short ones may stand in a short sentence."""
    one, other = normal(said), normal(known)
    if one == other:
        return True
    words = one.split()
    short = len(other.split()) <= 2 and len(words) <= 12
    return short and re.search(rf"(?<!\w){re.escape(other)}(?!\w)", one) is not None


def normal(text: str) -> str:
    """Without case, runs of white space and what ends sentences."""
    return " ".join(text.casefold().split()).strip(" .!\"'`*")


def lower_bound(right: int, asked: int) -> float:
    """Of the share, one-sided with 95 % confidence (Wilson)."""
    share, square = right / asked, _Z * _Z / asked
    middle = share + square / 2
    return (middle - _Z * math.sqrt(share * (1 - share) / asked + square / (4 * asked))) / (1 + square)
