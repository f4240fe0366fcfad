"""The steps of a run as they are kept: answers of the model and results of calls."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct


class StepJournal(Protocol):
    """Keeps the steps of runs; see `storage.agent_runs`."""

    async def steps(self, run_id: str) -> dict[str, bytes | None]:
        """The steps of a run; None for those that were begun and not done."""
        ...

    async def start(self, run_id: str, name: str) -> None:
        """A step begins."""
        ...

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        """A step is done."""
        ...


class NoJournal:
    """Keeps nothing."""

    async def steps(self, run_id: str) -> dict[str, bytes | None]:
        """See `StepJournal.steps`."""
        return {}

    async def start(self, run_id: str, name: str) -> None:
        """See `StepJournal.start`."""

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        """See `StepJournal.finish`."""


class ModelStep(Struct, frozen=True, kw_only=True):
    """An answer of the model as it is kept."""

    model: str
    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    reason: str
    text_reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    seed: int | None
    seconds: float
    nano_usd: int = 0


class CallStep(Struct, frozen=True):
    """A result as it is kept."""

    text: str
    is_error: bool
    seconds: float
