"""What batches of providers have in common, whatever their form is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from msgspec import Struct


class BatchLine(Struct, frozen=True):
    """A request in a batch."""

    custom_id: str
    body: bytes


class BatchState(Struct, frozen=True):
    """How far a batch is. `results` is where they are once it has ended, `error` why it has none."""

    is_ended: bool
    results: tuple[str, ...] = ()
    error: str = ""


class LineResult(Struct, frozen=True):
    """What a line brought, as the reply to a single request. Status 0: it was not run."""

    custom_id: str
    status: int
    body: bytes = b""


class BatchApi(Protocol):
    """The batches of one provider for one model. Everything raises AttemptFailed."""

    async def upload(self, name: str, path: str, lines: Sequence[BatchLine]) -> str:
        """Send the lines, where that is a step of its own: the id of what was sent, else ""."""
        ...

    async def create(
        self, name: str, path: str, upload_id: str, lines: Sequence[BatchLine], hops: Sequence[str]
    ) -> str:
        """Begin a batch; its id. `name` is the same each time that it is tried."""
        ...

    async def find(self, upload_id: str, count: int, since_s: int, known: set[str]) -> str | None:
        """The batch that `create` began without its reply being seen, if it did: one of `count` lines that
        was not there before and is not `known`."""
        ...

    async def state(self, batch_id: str) -> BatchState:
        """How far a batch is."""
        ...

    def results(self, state: BatchState) -> AsyncGenerator[list[LineResult]]:
        """The results of a batch that has ended, some at a time."""
        ...

    async def cancel(self, batch_id: str) -> None:
        """End a batch early. What has run is in its results."""
        ...
