"""What calls of the executor really take, with the loop around them, beside what was expected of them."""

from __future__ import annotations

from collections import deque

from headrace.engine.step_plan import GRAMMAR, Kind, StepPlan
from headrace.engine.step_times import StepWork
from headrace.executors.executor import MultiStepResult

WINDOW = 15  # calls of a kind that are remembered
MAX_KINDS = 256  # there are fewer: a bound all the same


class CallTimes:
    """Corrects the time of a step (StepTimes, which knows the executor's part) by the median of what calls
    like it took in proportion. A median, since a disturbed call takes many times as long, and none is faster
    than the machine. For the loop alone."""

    __slots__ = ("_alike", "_coarse")

    def __init__(self) -> None:
        self._alike: dict[Kind, deque[float]] = {}
        self._coarse: dict[bool, deque[float]] = {}

    def ratio(self, kind: Kind) -> float:
        """What calls of this kind took for each second that was expected; 1 where nothing is known."""
        found = self._alike.get(kind) or self._coarse.get(kind[0])
        return sorted(found)[len(found) // 2] if found else 1.0

    def learn(self, kind: Kind, expected_s: float, seconds: float) -> None:
        """A call of which `expected_s` was expected, uncorrected, took so long."""
        if expected_s <= 0 or seconds <= 0:
            return
        ratio = seconds / expected_s
        self._coarse.setdefault(kind[0], deque(maxlen=WINDOW)).append(ratio)
        alike = self._alike.get(kind)
        if alike is None and len(self._alike) < MAX_KINDS:
            alike = self._alike[kind] = deque(maxlen=WINDOW)
        if alike is not None:
            alike.append(ratio)


def kind_of(plan: StepPlan) -> Kind:
    """The kind of a planned call."""
    is_drafted = bool(plan.drafts.texts) or any(chunk.drafted for chunk in plan.chunks)
    has_grammar = bool(plan.slots) and plan.slots[0].choice.matcher is not None
    return kind_of_work(plan.work, is_long=plan.max_steps > 0, is_drafted=is_drafted, has_grammar=has_grammar)


def drafted_work(plan: StepPlan, ran: MultiStepResult) -> tuple[StepWork, Kind]:
    """What a step of a planned call computed in the mean, some of whose steps may have checked drafts."""
    work, checked = plan.work, sum(tokens for tokens, _ in ran.draft_steps)
    tokens = (work.rows * (ran.steps - len(ran.draft_steps)) + checked) / ran.steps
    found = StepWork(work.prefill, tokens, work.pairs * tokens / max(work.rows, 1))
    return found, kind_of_work(
        found, is_long=True, is_drafted=bool(ran.draft_steps), has_grammar=plan.kind[GRAMMAR]
    )


def kind_of_work(
    work: StepWork, *, is_long: bool = False, is_drafted: bool = False, has_grammar: bool = False
) -> Kind:
    """The kind of a call that computes this work."""
    prefill, rows = round(work.prefill), round(work.rows)
    return prefill > 0, prefill.bit_length(), rows.bit_length(), is_long, is_drafted, has_grammar
