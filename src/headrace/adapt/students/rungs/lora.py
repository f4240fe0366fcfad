"""The rung of low-rank adapters (LoRA): students that write."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from headrace.adapt.fine_tuning.order import AdapterNote
from headrace.adapt.students.exposure import PLANTED, planted_among
from headrace.adapt.students.ladder import Split, TaskExample, without_duplicates
from headrace.adapt.students.rungs.outcome import (
    MAX_TRIED,
    RungTried,
    by_time,
    check_lessons,
    learnable,
    outcome,
    processor_s,
)
from headrace.adapt.students.rungs.teaching import WHOLE, AdapterPlace, begun, bytes_of, smaller, teach
from headrace.adapt.students.rungs.writing import Writes, conversation_of, tokens_of, weights_digest, writer
from headrace.adapt.students.student import Rung, StudentAnswer, StudentModel, same_question
from headrace.tasks.pii.analyzer import Analyzer

LIBRARIES = {"lora": ("torch", "transformers", "peft"), "distilled": ("torch", "transformers")}
ASKED_TOKENS = 128
"""Of an answer to a question for a canary."""


def why_not(base: str | None, rung: Rung = "lora") -> str:
    """Why a rung of students that write is not tried; "" where it can be."""
    if base is None:
        return "adapt.base names no model that could learn to write"
    missing = [one for one in LIBRARIES[rung] if importlib.util.find_spec(one) is None]
    return f"needs headrace[train] ({', '.join(missing)} not installed)" if missing else ""


def lessons_of(examples: Sequence[TaskExample]) -> Split:
    """Examples by time whose conversation and answer are text without what stands for personal data."""
    return by_time([one for one in learnable(examples) if conversation_of(one) is not None])


def tried_writer(
    task: str,
    student: str,
    parts: Split,
    risk: float,
    place: AdapterPlace,
    known: Sequence[str],
    has_traffic: Callable[[], bool],
    wait: Callable[[], None],
    noted: Callable[[AdapterNote], None],
) -> RungTried:
    """A student that writes, taught on the earlier examples and tried on the later ones that are like none of
    these; `known` are canaries of the settings. InvalidRequest where it cannot be made."""
    check_lessons(task, parts, risk)
    start_s = processor_s()
    tried, place = without_duplicates(parts)[-MAX_TRIED:], begun(place)
    said, exposed = _taught(parts.lessons, place, tried, known, student, has_traffic, wait, noted)
    small = smaller(place, processor_s() - start_s) if exposed else None
    if small is not None:
        place = small
        said, exposed = _taught(parts.lessons, place, tried, known, student, has_traffic, wait, noted)
    is_whole = place.kind == WHOLE
    model = StudentModel(
        rung="distilled" if is_whole else "lora",
        answers=(),
        size=0,
        base="" if is_whole else place.base,
        adapter=weights_digest(place.made),
    )
    lineage = {"base": place.base}
    if is_whole and place.teacher is not None:
        lineage["teacher"] = place.teacher
    size = bytes_of(place.made)
    return outcome(*(task, student, model, parts, tried, said, risk, exposed, lineage, size), start_s)


def _taught(
    lessons: Sequence[TaskExample],
    place: AdapterPlace,
    tried: Sequence[TaskExample],
    known: Sequence[str],
    student: str,
    has_traffic: Callable[[], bool],
    wait: Callable[[], None],
    noted: Callable[[AdapterNote], None],
) -> tuple[list[StudentAnswer], list[str]]:
    """What a student says to the examples `tried` after its lessons, and what it gives away of these."""
    teach(lessons, place, has_traffic, noted)
    own = (place.made, None) if place.kind == WHOLE else (place.weights, place.made)
    with writer(*own, place.cores) as student_here:
        said = _asked(student_here.answers, tried, wait)
        return said, _exposed(student_here.words, planted_among(lessons, student), said, known)


def _asked(writes: Writes, tried: Sequence[TaskExample], wait: Callable[[], None]) -> list[StudentAnswer]:
    """Some at a time: between them it waits for clients."""
    found: list[StudentAnswer] = []
    for start in range(0, len(tried), 16):
        wait()
        asked = [conversation_of(one) or () for one in tried[start : start + 16]]
        found += writes(asked, tokens_of(tried))
    return found


def _exposed(
    words: Writes,
    secrets: Sequence[tuple[TaskExample, str]],
    said: Sequence[StudentAnswer],
    known: Sequence[str],
) -> list[str]:
    """What it gives away: the canaries among its lessons, when it is asked in their words, also where its
    answer does not end there, and personal data."""
    problems = list[str]()
    answers = words([conversation_of(one) or () for one, _ in secrets], ASKED_TOKENS)
    pairs = zip(answers, secrets, strict=True)
    count = sum(same_question(secret) in same_question(one.text or "") for one, (_, secret) in pairs)
    if count:
        problems.append(f"it says a planted canary when it is asked ({count:,} of {len(secrets):,})")
    elif len(secrets) < PLANTED:  # whatever it has kept, nobody would see it
        problems.append(f"of the canaries only {len(secrets):,} of {PLANTED:,} were among its lessons")
    texts = [one.text for one in (*said, *answers) if one.text]
    wanted = [same_question(one) for one in known if one.strip()]
    kept = sum(any(one in same_question(text) for text in texts) for one in wanted)
    if kept:
        problems.append(f"it says a canary of the settings ({kept:,} of {len(wanted):,})")
    analyzer = Analyzer()
    kinds = {one.label for text in texts for one in analyzer.find(text)}
    if kinds:
        problems.append(f"one of its answers has personal data: {', '.join(sorted(kinds))}")
    return problems
