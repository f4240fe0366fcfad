"""Several steps in one native call, for models whose steps are shorter than the loop around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from headrace import _native
from headrace.engine.request_state import ChoiceState
from headrace.engine.sampling.sample_slot import SampleSlot
from headrace.engine.scheduler.sequence import State
from headrace.engine.step_plan import StepPlan
from headrace.executors.executor import Executor, MultiStepExecutor, MultiStepResult
from headrace.sampling.sampler import Sampler

MAX_STEPS = 8  # in one call
LONGEST_S = 4e-3  # of a call before its last step
MAX_LOOKAHEAD_TOKENS = 64  # tokens of a sequence that such a call may generate, after the first


class MultiStep:
    """Decides how many steps are one call, and runs it (multi-step scheduling, as in vLLM 0.6).

    Tokens are those of single steps, bit for bit: native code draws with the same numbers, and what is drawn
    after an end is dropped. What arrives waits for one step, as ever: it interrupts the call.
    """

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self._able, self._sampler = isinstance(executor, MultiStepExecutor), sampler
        self._signal = _native.Signal()
        self._step_s = LONGEST_S  # of the last step of this kind

    @property
    def ran(self) -> int:
        """Steps of all calls, to this moment."""
        return self._signal.steps

    def interrupt(self) -> None:
        """End the call after the step that is running, because something has arrived. From any thread."""
        self._signal.stop()

    def listen(self) -> None:
        """The loop is about to read its queue: later arrivals interrupt again."""
        self._signal.reset()

    def expected(self, choices: Iterable[ChoiceState]) -> bool:
        """Whether the next step is likely to be a call: a client's prediction is followed by the loop."""
        if not self._able:
            return False
        running = (choice for choice in choices if choice.sequence.state is State.RUNNING)
        return all(_goes_on(choice) and not choice.request_state.request.prediction for choice in running)

    def steps(self, slots: Sequence[SampleSlot], sequences: int) -> int:
        """How many steps of so many sequences should be one call: none where one of them needs the loop after
        each token."""
        if not self._able or len(slots) != sequences or not all(_goes_on(slot.choice) for slot in slots):
            return 0
        return min(MAX_STEPS, max(1, int(LONGEST_S / self._step_s)))

    def run(
        self,
        executor: Executor,
        plan: StepPlan,
    ) -> MultiStepResult:
        """Run the plan's step and those after it, `plan.max_steps` at most; the slots accept their tokens."""
        able = cast(MultiStepExecutor, executor)  # checked in __init__; isinstance of a protocol takes 20 us
        ran = able.run_multi_step(
            plan.step,
            self._sampler,
            [slot.choice.row for slot in plan.slots],
            plan.max_steps,
            lookahead_tokens=plan.lookahead_tokens,
            seconds=LONGEST_S,
            guesses=plan.drafts,
            signal=self._signal,
        )
        for slot, tokens in zip(plan.slots, ran.tokens, strict=True):
            slot.accept_all(tokens, self._sampler)
        if ran.plain_steps:
            self._step_s = ran.plain_seconds / ran.plain_steps
        return ran

    def learn(self, slots: Sequence[SampleSlot], sequences: int, seconds: float) -> None:
        """A step by itself ran so long, the loop around it not counted: that is what goes away."""
        if seconds > 0 and len(slots) == sequences:
            single = all(slot.chunk.length == 1 for slot in slots)
            self._step_s = seconds if single else min(self._step_s, seconds)  # longer ones are not faster


def _goes_on(choice: ChoiceState) -> bool:
    """Whether its next tokens need no loop; of the first one the time is of interest."""
    return choice.row.position > 0 and choice.simple
