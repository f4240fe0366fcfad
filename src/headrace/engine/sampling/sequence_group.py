"""Sequences of one request that are read otherwise than by sampling: beams, continuations that are scored."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from headrace.engine.request import EngineEvent, Usage
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence
from headrace.errors import HeadraceError
from headrace.ops.value import Array
from headrace.sampling.sampler import Sampler


class GroupChange(Struct):
    """Sequences that have ended and that begin, and the events of a request that is over."""

    ended: list[Sequence] = field(default_factory=list[Sequence])
    begun: list[Sequence] = field(default_factory=list[Sequence])
    events: list[EngineEvent] = field(default_factory=list[EngineEvent])


class SequenceGroup(Protocol):
    """What takes the place of a request's choices. `error` is set where its rows cannot be read."""

    error: HeadraceError | None

    @property
    def sequences(self) -> list[Sequence]:
        """Those that are in the scheduler."""
        ...

    def read(self, chunk: ScheduledChunk, sampler: Sampler, logits: Array, first_row: int) -> None:
        """Read the chunk's rows of `logits`, which begin with `first_row`."""
        ...

    def settle(self) -> GroupChange:
        """After a step in which one or several were read: what follows."""
        ...

    def usage(self) -> Usage:
        """The tokens of the request."""
        ...
