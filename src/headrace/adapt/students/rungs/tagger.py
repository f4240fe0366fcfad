"""The rung of taggers: answers that are made of parts of the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.adapt.students.exposure import exposure_of, with_canaries
from headrace.adapt.students.ladder import TaskExample, without_duplicates
from headrace.adapt.students.rungs.outcome import (
    MAX_TRIED,
    RungTried,
    by_time,
    check_lessons,
    learnable,
    outcome,
    processor_s,
)
from headrace.adapt.students.rungs.tagging import ReadText, Tagger, form_and_marks, newest, taught_tagger
from headrace.adapt.students.rungs.word_states import reader

AT_A_TIME = 64
"""Questions that are read before it waits for clients."""


def tried_tagger(
    task: str,
    student: str,
    examples: Sequence[TaskExample],
    risk: float,
    tagger: tuple[str, Path],
    cores: int,
    known: Sequence[str],
    wait: Callable[[], None],
) -> RungTried:
    """A head on the states of a model, its name and folder `tagger`, taught on the earlier examples and tried
    on the later ones that are like none of these. InvalidRequest where answers are no parts of questions."""
    parts = with_canaries(by_time(learnable(examples)), student)
    check_lessons(task, parts, risk)
    start_s = processor_s()
    form, marks = form_and_marks([(one.question, one.answer) for one in parts.lessons])
    usable = [(one, mark) for one, mark in zip(parts.lessons, marks, strict=True) if mark is not None]
    usable = newest(usable)
    tried = without_duplicates(parts)[-MAX_TRIED:]
    with reader(tagger[1], cores) as reads:

        def read(questions: Sequence[str]) -> list[ReadText | None]:
            found: list[ReadText | None] = []
            for start in range(0, len(questions), AT_A_TIME):
                wait()
                found += reads(form, questions[start : start + AT_A_TIME])
            return found

        texts = read([one.question for one, _ in usable])
        pairs = zip(texts, (mark for _, mark in usable), strict=True)
        lessons = [(text, mark) for text, mark in pairs if text is not None and text.words]
        model = taught_tagger(tagger[0], form, lessons, lambda state: wait())
        head = Tagger(model)
        said = [head.answer(one) for one in read([one.question for one in tried])]
    exposed = exposure_of(model, student, known).problems
    lineage = {"tagger": tagger[0]}
    size = len(model.numbers)
    return outcome(*(task, student, model, parts, tried, said, risk, exposed, lineage, size), start_s)
