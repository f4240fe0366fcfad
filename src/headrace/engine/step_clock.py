"""Where the seconds of a step go: proposing drafts, the executor, the loop around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class StepClock:
    """Times one step after the other, in seconds of the monotonic clock.

    The loop's time runs from the end of one step to the end of the next, without the executor's and the
    drafters': it includes sending events and the time of their receivers on this thread. After waiting for
    requests it starts with the step.
    """

    __slots__ = (
        *("_clock", "_loop_from_s", "_waited"),
        *("began_s", "ended_s", "longest_s", "propose_s", "run_s"),
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._waited = clock, True
        self.began_s = self.ended_s = self._loop_from_s = clock()
        self.propose_s = self.run_s = self.longest_s = 0.0

    def wait(self, *, idle: bool) -> None:
        """The loop reads its queue; where it is `idle` it may wait there."""
        self._waited = idle

    def begin(self, turn_s: float = 0.0) -> None:
        """A step begins, after its loop has waited for its turn, which is no time of the loop."""
        self.began_s = self._clock()
        self._loop_from_s = self.began_s if self._waited else self.ended_s + turn_s
        self._waited = False
        self.propose_s = self.run_s = 0.0

    def propose(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call what proposes drafts."""
        start_s = self._clock()
        function(*args, **kwargs)
        self.propose_s = self._clock() - start_s

    def run(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call the executor."""
        start_s = self._clock()
        result = function(*args, **kwargs)
        self.run_s = self._clock() - start_s
        return result

    def end(self) -> None:
        """The step has ended; its events are not sent yet."""
        self.ended_s = self._clock()
        self.longest_s = max(self.longest_s, self.ended_s - self.began_s)

    @property
    def stalled_s(self) -> float:
        """How long the step takes by now, or the next is awaited; 0 in an idle loop. From any thread."""
        return 0.0 if self._waited else max(0.0, self._clock() - max(self.began_s, self.ended_s))

    @property
    def loop_s(self) -> float:
        """Of the step that has ended: what neither the executor nor the drafters took."""
        return self.ended_s - self._loop_from_s - self.propose_s - self.run_s
