"""A head that classifies the words of a question: it answers with parts of it.

A softmax regression on the states that a tagger has of a word and of its neighbors. The states are frozen,
and no word is a feature: what the head has learned are places, no texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
from msgspec import Struct

from headrace.adapt.students.rungs.answer_form import AnswerForm, WordPlaces, learned_form
from headrace.adapt.students.student import LEAST_SCORE, StudentAnswer, StudentModel
from headrace.adapt.traffic.kmeans import Floats
from headrace.errors import CorruptFile, InvalidRequest
from headrace.ops.value import Array
from headrace.tasks.few_shot import Watch, descend
from headrace.tasks.label_scores import Doubles, activated
from headrace.tasks.pii.operators import PLACEHOLDER

MAX_WORDS = 24_000
"""Of lessons, the newest: about 700 MB while they are learned."""
STEPS = 120
STRENGTH = 1e-5
RIDGE = 0.01
"""Of the mean variance of a feature, added to each: what is rare says little."""
NEIGHBOR = 0.5
SIGNS = 7


class ReadText(Struct, frozen=True, eq=False):
    """A question as the head reads it: the places of its words, and what is known of each [words, size]."""

    text: str
    words: WordPlaces
    features: Floats


def features_of(text: str, words: WordPlaces, tokens: WordPlaces, states: Array) -> Floats:
    """Of each word the mean state of its tokens, those of its neighbors, and how it is written; `states` are
    [tokens, size]."""
    rows = np.zeros((len(words), states.shape[1]), np.float32)
    at = 0
    for place, (start, end) in enumerate(words):
        while at < len(tokens) and tokens[at][1] <= start:
            at += 1
        last = at
        while last < len(tokens) and tokens[last][0] < end:
            last += 1
        if last > at:
            rows[place] = states[at:last].mean(0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    beside = np.zeros((len(words) + 2, states.shape[1]), np.float32)
    beside[1:-1] = rows * NEIGHBOR
    signs = np.array([_signs(text, *word) for word in words], np.float32).reshape(len(words), SIGNS)
    return np.hstack([rows, beside[:-2], beside[2:], signs * NEIGHBOR])


def _signs(text: str, start: int, end: int) -> list[bool]:
    word, before = text[start:end], text[start - 1 : start]
    has_digit = any(one.isdigit() for one in word)
    is_word = any(one.isalnum() for one in word)
    return [
        word[:1].isupper(),
        len(word) > 1 and word.isupper(),
        has_digit,
        word.isdigit(),
        not is_word,
        before in ("@", "#"),
        not before or before.isspace(),
    ]


T = TypeVar("T")


def newest(lessons: Sequence[tuple[T, list[int]]]) -> list[tuple[T, list[int]]]:
    """The last of them that have no more words than are learned."""
    found, words = list[tuple[T, list[int]]](), 0
    for one in reversed(lessons):
        words += len(one[1])
        if found and words > MAX_WORDS:
            break
        found.append(one)
    return found[::-1]


def taught_tagger(
    tagger: str, form: AnswerForm, lessons: Sequence[tuple[ReadText, list[int]]], watch: Watch | None = None
) -> StudentModel:
    """A head from questions with the classes of their words, on the states of a model `tagger`. The same
    numbers each time."""
    kept = newest(lessons)
    x: Doubles = np.vstack([one.features for one, _ in kept]).astype(np.float64)
    x = np.hstack([x, np.ones((len(x), 1))])
    marks = np.concatenate([np.array(one, np.int64) for _, one in kept])
    wanted = np.zeros((len(marks), form.classes))
    wanted[np.arange(len(marks)), marks] = 1
    # States differ in few directions: without this the descent takes thousands of steps.
    spread: Doubles = x.T @ x / len(x)
    spread += np.eye(len(spread)) * (RIDGE * np.trace(spread) / len(spread))
    turn = cast("Doubles", np.linalg.inv(np.linalg.cholesky(spread)) / math.sqrt(len(spread)))
    x @= turn.T
    share = np.full(len(marks), 1 / len(marks))
    found: Doubles = descend(x, wanted, share, STRENGTH, watch, steps=STEPS) @ turn
    return StudentModel(
        rung="tagger",
        answers=(),
        size=found.shape[1] - 1,
        numbers=found.astype("<f4").tobytes(),
        base=tagger,
        form=form,
    )


class Tagger:
    """A student that answers with parts of the question."""

    def __init__(self, model: StudentModel) -> None:
        assert model.form is not None
        self.form = model.form
        table = np.frombuffer(model.numbers, "<f4").reshape(-1, model.size + 1)
        if len(table) != self.form.classes:
            raise CorruptFile("the weights of a tagger do not fit its answers: train it again")
        self._weights, self._bias = table[:, :-1], table[:, -1]

    def answer(self, read: ReadText | None) -> StudentAnswer:
        """What it says; the logarithm of the probability that each word has its class."""
        if read is None or not read.words:
            return StudentAnswer(None)
        if read.features.shape[1] != self._weights.shape[1]:
            raise CorruptFile(
                f"a tagger was made with {self._weights.shape[1]:,} numbers of a word, not "
                f"{read.features.shape[1]:,}: train it again"
            )
        chances = activated(read.features @ self._weights.T + self._bias, "softmax")
        best = np.log(np.maximum(chances.max(1), 1e-9))
        scores = [float(one) for one in best]
        marks = [int(one) for one in chances.argmax(1)]
        text = self.form.write(read.text, read.words, marks, scores)
        if PLACEHOLDER.search(text):  # what stands for personal data is no answer
            return StudentAnswer(None)
        return StudentAnswer(text, max(sum(scores), LEAST_SCORE))


def form_and_marks(
    pairs: Sequence[tuple[str, str]], read_form: AnswerForm | None = None
) -> tuple[AnswerForm, list[list[int] | None]]:
    """The form of answers to questions, and the classes of the words of each; None for those of another
    form. InvalidRequest where there is none."""
    form = read_form or learned_form(pairs)
    marks = [form.marks(*one) for one in pairs]
    if not any(any(one) for one in marks if one is not None):
        raise InvalidRequest("no answer has a part of its question", param="task")
    return form, marks
