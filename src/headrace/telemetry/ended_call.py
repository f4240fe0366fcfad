"""A call that has ended, as spans and metrics are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from headrace.telemetry.explain_node import EngineTrace, Stage
from headrace.telemetry.trace_context import TraceContext

if TYPE_CHECKING:
    from headrace.sampling.params import SamplingParams


class EndedCall(Struct, frozen=True, kw_only=True):
    """`arrived_s` is Unix time; other times count from it, in seconds. `status` is HTTP's, `error` the code
    of what the call ended with."""

    id: str
    trace: TraceContext
    method: str
    path: str
    status: int
    error: str | None
    model: str
    arrived_s: float
    total_s: float
    first_token_s: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    finish_reasons: Sequence[str]
    params: SamplingParams | None
    stages: Sequence[Stage]
    traces: Sequence[EngineTrace]


class Tracing(Protocol):
    """Records calls elsewhere. Nothing of it may delay or fail a request."""

    def begin(self, trace: TraceContext, path: str) -> TraceContext:
        """The trace of a call that arrives, sampled or not."""
        ...

    def ended(self, call: EndedCall) -> None:
        """Record a call, later and on another thread; where too many wait it is dropped and counted."""
        ...

    def close(self) -> None:
        """Send what waits, within a bounded time."""
        ...
