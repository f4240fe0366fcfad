"""Several steps in one call where steps are so short that the loop between them takes most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from headrace import _native
from headrace.engine.speculate.lookup import Watched
from headrace.engine.turn import Turn
from headrace.program.step import Step
from headrace.run.executor import Executor, RunsSeveral
from headrace.sample.sampler import Sampler

MOST_STEPS = 8  # in one call
LONGEST_S = 1e-3  # that a call takes


class MultiStep:
    """Says how often a step is to be repeated, and does so (multi-step scheduling, as in vLLM 0.6).

    Tokens are those of single steps, bit for bit: native code draws with the same numbers, and what is drawn
    after an end is dropped. What arrives waits for one step, as ever: it interrupts the call.
    """

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self._able, self._sampler = isinstance(executor, RunsSeveral), sampler
        self._signal = _native.Signal()
        self._step_s = LONGEST_S  # of the last step of this kind

    @property
    def steps(self) -> int:
        """Steps of all calls, to this moment."""
        return self._signal.steps

    def interrupt(self) -> None:
        """Have the loop look at what has arrived after the step that is running. From any thread."""
        self._signal.stop()

    def listen(self) -> None:
        """The loop is about to look."""
        self._signal.reset()

    def repeats(self, turns: Sequence[Turn], sequences: int) -> int:
        """How often the step of so many sequences should be repeated: not at all where one of them needs the
        loop after each token."""
        times = min(MOST_STEPS, int(LONGEST_S / self._step_s)) - 1
        if times < 1 or not self._able or len(turns) != sequences:
            return 0
        # Of the first token the time is of interest.
        return times if all(turn.choice.row.position and turn.choice.simple for turn in turns) else 0

    def run(
        self, executor: Executor, step: Step, turns: Sequence[Turn], repeats: int, watched: Watched
    ) -> list[int]:
        """Run the turns' step and its repeats: the tokens, as `run_several` gives them."""
        able = cast(RunsSeveral, executor)  # known since __init__; asking a protocol takes 20 us
        rows = [turn.choice.row for turn in turns]
        return able.run_several(
            step, self._sampler, rows, repeats + 1, self._signal, watched.texts, watched.least
        )

    def take(self, turns: Sequence[Turn], tokens: Sequence[int]) -> int:
        """The turns take their tokens; how many steps made them."""
        for index, turn in enumerate(turns):
            turn.take_all(tokens[index :: len(turns)], self._sampler)
        return len(tokens) // len(turns)

    def learn(self, turns: Sequence[Turn], sequences: int, seconds: float) -> None:
        """A step ran so long, the loop around it not counted: that is what goes away."""
        if seconds > 0 and len(turns) == sequences and all(turn.chunk.length == 1 for turn in turns):
            self._step_s = seconds
