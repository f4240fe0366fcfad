"""Students: what answers the questions of a task without a large model. Six kinds, the simplest first."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final, Literal, cast, get_args

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.students.rungs.answer_form import AnswerForm
from headrace.adapt.traffic.kmeans import Floats
from headrace.errors import CorruptFile
from headrace.gateway.near_answers import NEIGHBORS, agreed
from headrace.tasks.few_shot import FitState, LogisticRegression, Watch, fit

Rung = Literal["exact", "nearest", "head", "tagger", "lora", "distilled"]
LADDER: Final[tuple[Rung, ...]] = get_args(Rung)
RUNGS: Final[tuple[Rung, ...]] = LADDER[:3]
"""Those that choose an answer that came before. Others, which are tried after them, make it: of parts of the
question (`rungs.tagging`), or they write it (`rungs.lora`, `rungs.distilled`)."""
MAX_TOKENS = 2048
"""Of what a student writes; what is longer the large model writes."""
LEAST_SCORE = math.log(1e-6)
"""The natural logarithm of a score of an answer that is none."""


class Lesson(Struct, frozen=True):
    """A question, its vector [size], the answer that is right, and when it was asked."""

    question: str
    answer: str
    vector: Floats
    at_s: float = 0.0


class StudentAnswer(Struct, frozen=True):
    """What a student says, None where it knows nothing, the natural logarithm of how sure it is, and what
    that took of this machine, None where that is not known."""

    text: str | None
    score: float = LEAST_SCORE
    nano_usd: int | None = None


class StudentModel(Struct, frozen=True, kw_only=True):
    """A student as it is stored. `numbers` are float32: the vectors of known questions, or the rows of a
    regression and its biases; `places` are the answers of known questions among `answers`, `times` when these
    were asked. A tagger has the `form` of its answers, and reads the states of the model `base`. One that
    writes has weights of its own, whose digest is `adapter`: an adapter of the model `base`, or a model."""

    rung: Rung
    answers: tuple[str, ...]
    size: int
    numbers: bytes = b""
    questions: tuple[str, ...] = ()
    places: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    base: str = ""
    adapter: str = ""
    form: AnswerForm | None = None

    @property
    def writes(self) -> bool:
        """Whether it makes its answers: a model is asked, and it chooses none of those that came before."""
        return self.rung not in RUNGS

    @property
    def is_loaded(self) -> bool:
        """Whether it has weights that a server loads: an adapter, or a model."""
        return self.rung in ("lora", "distilled")

    @property
    def says(self) -> tuple[str, ...]:
        """What it can say that is no part of the question, as far as that is known."""
        return self.answers if self.form is None else (*self.answers, *self.form.constants)

    @property
    def digest(self) -> str:
        """By which its weights are known."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:16]


def same_question(text: str) -> str:
    """By which a question is the same as an earlier one."""
    return " ".join(text.casefold().split())


def is_same(said: str | None, answer: str) -> bool:
    """Whether a text is the answer, white space at its ends aside."""
    return said is not None and said.strip() == answer.strip()


def taught(
    rung: Rung, lessons: Sequence[Lesson], watch: Watch | None = None, state: FitState | None = None
) -> StudentModel:
    """A student of that kind; `watch` and `state` as in `few_shot.fit`."""
    answers = tuple(sorted({one.answer for one in lessons}))
    places = {answer: place for place, answer in enumerate(answers)}
    size = len(lessons[0].vector)
    if rung == "head":
        made = fit(
            np.stack([one.vector for one in lessons]),
            [one.answer for one in lessons],
            watch=watch,
            state=state,
        )
        numbers = np.hstack([made.weights, made.bias[:, None]]).astype("<f4").tobytes()
        return StudentModel(rung=rung, answers=made.labels, size=size, numbers=numbers)
    numbers = b""
    if rung == "exact":
        lessons = _unanimous(lessons)
    else:
        numbers = np.stack([one.vector for one in lessons]).astype("<f4").tobytes()
    return StudentModel(
        rung=rung,
        answers=answers,
        size=size,
        numbers=numbers,
        questions=tuple(one.question for one in lessons),
        places=tuple(places[one.answer] for one in lessons),
        times=tuple(one.at_s for one in lessons),
    )


def without_expired(model: StudentModel, before_s: float) -> StudentModel:
    """A student without the questions that were asked before that time: it knows less, and nothing new."""
    kept = [place for place, at_s in enumerate(model.times) if at_s >= before_s]
    if len(kept) == len(model.questions):
        return model
    rows = np.frombuffer(model.numbers, "<f4").reshape(len(model.questions), -1)
    used = sorted({model.places[place] for place in kept})
    return replace(
        model,
        answers=tuple(model.answers[place] for place in used),
        numbers=rows[kept].tobytes(),
        questions=tuple(model.questions[place] for place in kept),
        places=tuple(used.index(model.places[place]) for place in kept),
        times=tuple(model.times[place] for place in kept),
    )


class Student:
    """A student that answers."""

    def __init__(self, model: StudentModel) -> None:
        self.model = model
        rows = np.frombuffer(model.numbers, "<f4")
        if model.rung == "head":
            table = rows.reshape(len(model.answers), model.size + 1)
            self._head = LogisticRegression(model.answers, table[:, :-1], table[:, -1])
        elif model.rung == "nearest":
            self._vectors = rows.reshape(len(model.questions), model.size)
        elif model.rung == "exact":
            known = zip(model.questions, model.places, strict=True)
            self._known = {same_question(text): model.answers[place] for text, place in known}

    def answer(self, questions: Sequence[str], vectors: Floats) -> list[StudentAnswer]:
        """What it says to questions with their vectors [questions, size] of length 1."""
        assert not self.model.writes, "it is asked by its name"
        if self.model.rung == "exact":
            found = [self._known.get(same_question(one)) for one in questions]
            return [StudentAnswer(one, LEAST_SCORE if one is None else 0.0) for one in found]
        if vectors.shape[1:] != (self.model.size,):
            raise CorruptFile(
                f"a student was made with vectors of {self.model.size:,} numbers, not {vectors.shape[1]:,}: "
                "train it again"
            )
        if self.model.rung == "head":
            said = self._head.classify(vectors)
            return [StudentAnswer(one.label, math.log(max(max(one.scores), 1e-6))) for one in said]
        return [self._nearest(*pair) for pair in zip(questions, vectors @ self._vectors.T, strict=True)]

    def _nearest(self, question: str, near: Floats) -> StudentAnswer:
        model = self.model
        best = np.argsort(-near, kind="stable")[:NEIGHBORS]
        known = [
            (float(near[at]), model.questions[at], model.answers[model.places[at]])
            for at in cast("list[int]", best.tolist())
        ]
        found = agreed(question, known)
        return (
            StudentAnswer(None) if found is None else StudentAnswer(found[1], math.log(max(found[0], 1e-6)))
        )


def _unanimous(lessons: Sequence[Lesson]) -> list[Lesson]:
    """Questions that always had the same answer."""
    said: dict[str, set[str]] = {}
    for one in lessons:
        said.setdefault(same_question(one.question), set()).add(one.answer)
    return [one for one in lessons if len(said[same_question(one.question)]) == 1]
