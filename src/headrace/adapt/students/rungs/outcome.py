"""How a student that makes its answers did on later examples."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from msgspec import Struct

from headrace.adapt.students.ladder import (
    HELD_OUT,
    STUDENT,
    RungResult,
    Split,
    TaskExample,
    capped,
    certified,
    needed,
)
from headrace.adapt.students.student import StudentAnswer, StudentModel, is_same
from headrace.errors import InvalidRequest
from headrace.gateway.gate import Pair
from headrace.tasks.pii.operators import PLACEHOLDER

MAX_ANSWER = 4000
"""Characters."""
MAX_TRIED = 400
"""Examples that were held out, the newest."""


class RungTried(Struct, frozen=True, kw_only=True):
    """How a student did: on what, pair by pair, what it gives away, and which models it comes from."""

    result: RungResult
    parts: Split
    pairs: list[Pair]
    exposed: list[str]
    lineage: dict[str, str] = {}


def learnable(examples: Sequence[TaskExample]) -> list[TaskExample]:
    """Those whose answer is a text without what stands for personal data."""
    return [
        one for one in examples if 0 < len(one.answer) <= MAX_ANSWER and not PLACEHOLDER.search(one.answer)
    ]


def are_texts(examples: Sequence[TaskExample]) -> bool:
    """Whether answers are free text; where half are objects or lists of JSON, equality says enough."""
    return 2 * sum(_is_data(one.answer) for one in examples) < len(examples)


def _is_data(answer: str) -> bool:
    try:
        return isinstance(json.loads(answer), dict | list)
    except (ValueError, RecursionError):
        return False


def by_time(examples: Sequence[TaskExample]) -> Split:
    """The earlier ones to learn from, with at most half of one key of several."""
    known = capped(examples)
    cut = len(known) - int(len(known) * HELD_OUT)
    return Split(known[:cut], known[cut:])


def check_lessons(task: str, parts: Split, risk: float) -> None:
    """InvalidRequest where there are too few."""
    least, known = needed(risk), len(parts.lessons) + len(parts.held_out)
    if known < least:
        raise InvalidRequest(
            f"task {task} has {known:,} examples whose answer can be learned by heart, {least:,} are needed "
            f"at least: {least - known:,} more",
            param="task",
        )


def processor_s() -> float:
    """Seconds of this process, and of those that it has started and that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def outcome(
    task: str,
    student: str,
    model: StudentModel,
    parts: Split,
    tried: Sequence[TaskExample],
    said: Sequence[StudentAnswer],
    risk: float,
    exposed: list[str],
    lineage: dict[str, str],
    bytes: int,
    start_s: float,
) -> RungTried:
    """What a student has `said` to the later examples `tried`, and what can be certified of it; it was begun
    at `start_s` of `processor_s`."""
    pairs = [
        Pair(score=one.score, is_wrong=not is_same(one.text, each.answer))
        for one, each in zip(said, tried, strict=True)
    ]
    calibration, problem = None, ""
    try:
        calibration = certified(task, f"{STUDENT}{student}", model.digest, pairs, risk)
    except InvalidRequest as error:
        problem = error.message
    share = 0.0
    if calibration is not None:
        share = sum(one.score >= calibration.certificate.threshold for one in pairs) / len(pairs)
    result = RungResult(
        rung=model.rung,
        model=model,
        tried=len(tried),
        right=sum(not one.is_wrong for one in pairs),
        share=share,
        calibration=calibration,
        problem=problem,
        seconds=processor_s() - start_s,
        bytes=bytes,
    )
    return RungTried(result=result, parts=parts, pairs=pairs, exposed=exposed, lineage=lineage)
