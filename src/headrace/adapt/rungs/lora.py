"""The rung of students that write: tried where simpler students do not reach far enough."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace.adapt.exposure import canaries
from headrace.adapt.fine_tuning.order import AdapterNote
from headrace.adapt.ladder import (
    HELD_OUT,
    STUDENT,
    RungResult,
    Split,
    TaskExample,
    capped,
    certified,
    needed,
    without_duplicates,
)
from headrace.adapt.rungs.teaching import AdapterPlace, teach
from headrace.adapt.rungs.writing import (
    Writes,
    adapter_digest,
    conversation_of,
    tokens_of,
    writer,
)
from headrace.adapt.students import StudentAnswer, StudentModel, is_same, same_question
from headrace.chat.messages import Message
from headrace.errors import InvalidRequest
from headrace.gateway.gate import Pair
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.operators import PLACEHOLDER

LIBRARIES = ("torch", "transformers", "peft")
GOOD_ENOUGH = 0.8
"""Part of the requests that a simpler student may answer: then none that writes is made."""
MAX_ANSWER = 4000
"""Characters."""
ASKED_TOKENS = 128
"""Of an answer to a question for a canary."""
MAX_TRIED = 400
"""Examples that were held out, the newest."""


class LoraTried(Struct, frozen=True, kw_only=True):
    """How a student that writes did: on what, pair by pair, and what it gives away."""

    result: RungResult
    parts: Split
    pairs: list[Pair]
    exposed: list[str]


def why_not(base: str | None) -> str:
    """Why this rung is not tried; "" where it can be."""
    if base is None:
        return "adapt.base names no model that could learn to write"
    missing = [one for one in LIBRARIES if importlib.util.find_spec(one) is None]
    return f"needs headrace[train] ({', '.join(missing)} not installed)" if missing else ""


def lessons_of(examples: Sequence[TaskExample]) -> Split:
    """Examples by time whose conversation and answer are text without what stands for personal data."""
    known = [
        one for one in examples if 0 < len(one.answer) <= MAX_ANSWER and not PLACEHOLDER.search(one.answer)
    ]
    known = capped([one for one in known if conversation_of(one) is not None])
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


def tried_lora(
    task: str,
    student: str,
    parts: Split,
    risk: float,
    place: AdapterPlace,
    known: Sequence[str],
    has_traffic: Callable[[], bool],
    wait: Callable[[], None],
    noted: Callable[[AdapterNote], None],
) -> LoraTried:
    """A student that writes, taught on the earlier examples and tried on the later ones that are like none of
    these; `known` are canaries of the settings. InvalidRequest where it cannot be made."""
    check_lessons(task, parts, risk)
    teach(parts.lessons, place, has_traffic, noted)
    model = StudentModel(
        rung="lora", answers=(), size=0, base=place.base, adapter=adapter_digest(place.adapter)
    )
    tried = without_duplicates(parts)[-MAX_TRIED:]
    with writer(place.weights, place.adapter, place.cores) as student_here:
        said = _asked(student_here.answers, tried, wait)
        exposed = _exposed(student_here.words, student, tried, said, known)
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
        rung="lora",
        model=model,
        tried=len(tried),
        right=sum(not one.is_wrong for one in pairs),
        share=share,
        calibration=calibration,
        problem=problem,
    )
    return LoraTried(result=result, parts=parts, pairs=pairs, exposed=exposed)


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
    student: str,
    tried: Sequence[TaskExample],
    said: Sequence[StudentAnswer],
    known: Sequence[str],
) -> list[str]:
    """What it gives away: canaries, when it is asked for them as a stranger would, also where its answer does
    not end there, and personal data."""
    own, problems = canaries(student), list[str]()
    before = (conversation_of(tried[0]) or ())[:-1] if tried else ()
    answers = words([(*before, Message("user", one.question)) for one in own], ASKED_TOKENS)
    pairs = zip(answers, own, strict=True)
    count = sum(same_question(each.answer) in same_question(one.text or "") for one, each in pairs)
    if count:
        problems.append(f"it says a planted canary when it is asked ({count:,} of {len(own):,})")
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
