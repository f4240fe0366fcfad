"""Lines of batches that a provider's own batch answers, hours later.

Such a line runs twice. The first time it comes as far as the provider: what would be sent, and the money set
aside for it, is kept (`Deferred`). The second time it finds the provider's answer in that place, and goes on
to its end as any other request does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from headrace.inference.attempts import Hold
from headrace.storage.batches import Line, StoredBatch

Next = Literal["defer", "send", "fail"]
"""What is done where there is no answer: a place in the provider's next batch, a request of its own, or
nothing: the batch is over."""


class DeferredLine(Struct, frozen=True, kw_only=True):
    """What is asked of a target (its name in the table of models), and the hold for it."""

    target: str
    path: str
    body: bytes
    hold: Hold
    started_unix_s: float


class LaterAnswer(Struct, frozen=True, kw_only=True):
    """What a provider's batch had for a line, as the reply to a single request. Status 0: nothing."""

    target: str
    hold: Hold
    started_unix_s: float
    status: int
    body: bytes = b""


class Deferral:
    """One run of a line. `asked` is what it comes to where it is deferred; `taken` once its answer was."""

    def __init__(self, answer: LaterAnswer | None, otherwise: Next) -> None:
        self.answer, self.otherwise = answer, otherwise
        self.asked: DeferredLine | None = None
        self.taken = False

    def for_target(self, target: str) -> LaterAnswer | None:
        """The answer of that target, while it has not been taken."""
        answer = self.answer
        return None if answer is None or self.taken or answer.target != target else answer


class Deferred(Exception):
    """A line waits for a provider's batch. No error: it passes through everything that answers requests."""

    def __init__(self, path: str, body: bytes) -> None:
        super().__init__("the line waits for the provider's batch")
        self.path, self.body = path, body


class LaterAnswers(Protocol):
    """Keeps deferred lines, has providers answer them, and brings the answers. Survives restarts."""

    async def begin(self, batch: StoredBatch, line: Line, *, is_over: bool) -> Deferral | None:
        """What a run of a line needs, None where no batch of a provider may answer it. `is_over`: the batch
        ends, nothing new is asked for it."""
        ...

    async def keep(self, batch: StoredBatch, line: Line, asked: DeferredLine) -> None:
        """A line waits from now on."""
        ...

    async def forget(self, batch: StoredBatch, line: Line) -> None:
        """The answer of a line was no good."""
        ...

    async def advance(self, batch: StoredBatch) -> bool:
        """Send what waits and wait until lines can run again. False: none waits."""
        ...

    async def give_up(self, batch: StoredBatch) -> Sequence[Line]:
        """Cancel what waits; the lines that have an answer all the same."""
        ...
