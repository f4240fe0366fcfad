"""When the answers to similar questions are the answer: closed ones, of which the nearest agree, certified.

Similarity alone says little: opposites are more alike than paraphrases. So five nearest answers must be
equal, and the question must have the numbers, names and negations of the nearest. How often that is wrong is
learned for each kind of request from requests that are computed anyway, and nothing is served before a
certificate bounds it (`certificate.py`). Afterwards a part of the hits is computed all the same, and an
alarm of `drift.py` ends it where they are wrong more often.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from headrace.gateway.answer_record import AnswerRecord, text_of
from headrace.gateway.near_questions import NearQuestions, Question
from headrace.storage.cached_answers import StoredAnswer

NEIGHBORS = 5
LEAST_SIMILARITY = 0.5
MAX_CLOSED_CHARACTERS = 256
"""A longer answer to a request without a constraint is no label."""
Read = Callable[[StoredAnswer], Awaitable[AnswerRecord | None]]
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_QUOTED = re.compile('[`"“”«»]([^`"“”«»]{1,200})[`"“”«»]')
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_NEGATIONS = frozenset(
    word
    for line in (
        "no not never none without except nothing nor neither cannot unless isn't aren't wasn't don't",
        "doesn't didn't won't can't couldn't shouldn't wouldn't non kein keine nicht nie ohne pas",
        "jamais sans nunca sin não nao nem",
    )
    for word in line.split()
)
_UNITS = frozenset(["%", "°", "$", "€", "£", "¥", "+", "-", "=", "<", ">", "&", "|", "@", "#"])


def marks_of(text: str) -> object:
    """What two questions must have in common: numbers, quoted texts, signs and names in their order, and
    negations. Names are words with a capital that do not begin a sentence, and words with several."""
    plain = text.replace("’", "'")
    names = [found[0] for found in _WORD.finditer(plain) if _is_name(found[0], plain, found.start())]
    negations = Counter(word.lower() for word in _WORD.findall(plain) if word.lower() in _NEGATIONS)
    signs = [one for one in plain if one in _UNITS]
    return _NUMBER.findall(plain), _QUOTED.findall(plain), names, negations, signs


def _is_name(word: str, text: str, place: int) -> bool:
    has_capital_later = word[1:] != word[1:].lower()
    return has_capital_later or (word != word.lower() and _is_inside(text, place))


def _is_inside(text: str, place: int) -> bool:
    """Whether a word does not begin a sentence."""
    before = text[:place].rstrip()
    return bool(before) and before[-1] not in ".!?:\n"


def agreed(question: str, found: Sequence[tuple[float, str, str]]) -> tuple[float, str] | None:
    """The answer of the nearest questions (similarity, question, answer), and how sure it is: the least
    similarity of them. None where there are too few, they differ, or the marks do."""
    if len(found) < NEIGHBORS or len({answer for _, _, answer in found[:NEIGHBORS]}) != 1:
        return None
    if marks_of(question) != marks_of(found[0][1]):
        return None
    return min(near for near, _, _ in found[:NEIGHBORS]), found[0][2]


async def near_answer(
    question: Question, near: NearQuestions, read: Read
) -> tuple[float, StoredAnswer, AnswerRecord] | None:
    """What the nearest kept answers to a question agree on, if they do: the score, the nearest answer, and
    its record."""
    found = near.nearest(question, NEIGHBORS, LEAST_SIMILARITY)
    if len(found) < NEIGHBORS:
        return None
    records = [await read(answer) for _, answer in found]
    known: list[tuple[float, str, str]] = []
    for (similarity, _), record in zip(found, records, strict=True):
        text = None if record is None else text_of(record.batches)
        if record is None or text is None or not is_closed_answer(text):
            return None
        known.append((similarity, record.question, text))
    score, first = agreed(question.text, known), records[0]
    return None if score is None or first is None else (score[0], found[0][1], first)


def is_closed_answer(text: str) -> bool:
    """Whether an answer may be one of few: a label, a number, a small JSON value."""
    return len(text) <= MAX_CLOSED_CHARACTERS
