"""What is known of one call besides the request itself: its id, its account, its outcome."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.inference.accounts import Account
from headrace.inference.events import GuardVerdict, ParameterWarning
from headrace.telemetry.explain_node import EngineTrace, Stage
from headrace.telemetry.trace_context import TraceContext, child_of, new_trace

if TYPE_CHECKING:
    from headrace.engine.request import Usage
    from headrace.errors import HeadraceError
    from headrace.inference.batches.deferral import Deferral
    from headrace.journal.call_journal import CallJournal
    from headrace.sampling.params import SamplingParams


MAX_STAGES = 64
"""Of a call that does not ask to be explained."""
MAX_CONTENT = 4096
"""Characters that are kept of what went into a stage, and of what came out."""
HOPS = "x-headrace-hops"
"""The header with the servers that a request has passed, by which loops are found."""


@dataclass(slots=True, eq=False)
class StageNote:
    """What is known of a stage at its end. `own` is the call that it was. See `Stage`."""

    detail: dict[str, object]
    own: CallContext | None = None
    error: str = ""
    input: str = ""
    output: str = ""
    span_id: str = ""
    keeps_content: bool = False

    def stage(self, name: str, start_s: float, end_s: float, arrival_s: float) -> Stage:
        """The stage of a call that arrived at `arrival_s` on the monotonic clock."""
        content, own = ("", ""), self.own
        if self.keeps_content:
            content = self.input[:MAX_CONTENT], self.output[:MAX_CONTENT]
        if own is None:
            return Stage(
                *(name, start_s, end_s, self.detail),
                span_id=self.span_id,
                error=self.error,
                content=content,
            )
        return Stage(
            *(name, start_s, end_s, self.detail, own.stages, own.traces, own.arrival_s - arrival_s),
            is_whole=True,
            span_id=own.trace.span_id,
            error=self.error,
            content=content,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class CallContext:
    """Made once per request by the surface, passed to every handler, never fetched from ambient state.

    `arrival_s` is monotonic, `arrived_unix_s` is not. A `background` call yields to all others. Handlers fill
    in `model`, `usages` (one per prompt), `first_token_s` (from arrival), `load_s` (waiting for the model),
    `warnings`, `verdicts` (of guards: what replies, and a record of how a request was answered, show) and
    `reply_headers` (those that are known when the reply begins). `hops` are the servers that the request has
    passed, `traceparent` and `tracestate` the headers that name its trace. `booking_id` is the request's id
    in the ledger, which two calls never share; clients may send the `request_id` of an earlier call again.
    `attempts` counts those that were made for it, `spent_nano_usd` is what attempts cost whose answers were
    not taken, and `routed` are the targets in the order in which a route tries them, each with the reason of
    its place. Handlers add `stages`, and `traces` of engines; of a call that asks to be explained (`explain`)
    all of them; with `keeps_content` these have what went in and came out. `params` and `finish_reasons` are
    those of a local model.
    """

    request_id: str
    account: Account
    traceparent: str = ""
    tracestate: str = ""
    booking_id: str = ""
    work_id: str = ""
    """Under which this machine's time for it is booked, once, however often servers were killed meanwhile."""
    attempts: int = 0
    spent_nano_usd: int = 0
    machine_nano_usd: int = 0
    """What it took of this machine, where that has a price: of each step that has ended."""
    remote_nano_usd: int = 0
    """What attempts at models elsewhere cost that have ended, where that is known."""
    route: str = ""
    """The route by which it is computed here, under which this machine's time for it is booked."""
    is_given_again: bool = False
    """Its answer was kept, or is computed for another call."""
    routed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    arrival_s: float = field(default_factory=time.monotonic)
    arrived_unix_s: float = field(default_factory=time.time)
    background: bool = False
    model: str = ""
    load_s: float = 0.0
    first_token_s: float | None = None
    usages: list[Usage] = field(default_factory=list["Usage"])
    warnings: list[ParameterWarning] = field(default_factory=list[ParameterWarning])
    verdicts: list[GuardVerdict] = field(default_factory=list[GuardVerdict])
    reply_headers: dict[str, str] = field(default_factory=dict[str, str])
    hops: tuple[str, ...] = ()
    explain: bool = False
    keeps_content: bool = False
    params: SamplingParams | None = None
    finish_reasons: list[str] = field(default_factory=list[str])
    stages: list[Stage] = field(default_factory=list[Stage])
    traces: list[EngineTrace] = field(default_factory=list[EngineTrace])
    ordered_elsewhere: bool = False
    """A provider's own order decides when this is computed, whatever priority was asked for."""
    no_store: bool = False
    """The client has said that its answer must not be kept (`cache-control: no-store`)."""
    error: HeadraceError | None = None
    running: list[asyncio.Future[None]] = field(default_factory=list["asyncio.Future[None]"])
    """Resolve when what was cancelled has really ended, which a client need not wait for."""
    stops: dict[str, Callable[[int], None]] = field(default_factory=dict[str, Callable[[int], None]])
    """Of each request that is computed, by its id: computes no more of a prompt, whose last events come."""
    nonce: str = field(default_factory=lambda: os.urandom(16).hex())
    """What the ids of its reply are made of: they are the same when it is made again with the same one."""
    journal: CallJournal | None = None
    """Records what is computed for it."""
    deferral: Deferral | None = None
    """Where it is a line that a provider's batch may answer."""
    _ids: int = 0

    _trace: TraceContext | None = None

    def __post_init__(self) -> None:
        self.booking_id = self.booking_id or self.request_id
        self.work_id = self.work_id or self.booking_id

    @property
    def taken_nano_usd(self) -> int:
        """What it has cost so far, here and elsewhere."""
        return self.machine_nano_usd + self.remote_nano_usd

    @property
    def trace(self) -> TraceContext:
        """The trace that the call belongs to, read from its headers when it is first asked for."""
        if self._trace is None:
            self._trace = new_trace(self.traceparent, self.tracestate)
        return self._trace

    @property
    def recorded_trace(self) -> str:
        """The id of its trace where that is recorded here or by the caller, else ""."""
        return self.trace.trace_id if self.traceparent or self._trace is not None else ""

    @trace.setter
    def trace(self, trace: TraceContext) -> None:
        self._trace = trace

    @contextmanager
    def part(self, name: str, **detail: object) -> Generator[tuple[CallContext, StageNote]]:
        """The context of a part that is a call of its own, and may run beside others; it counts as one stage
        of this call. What it takes is added to this call's."""
        own = self.beside(f"{name}-{os.urandom(4).hex()}")
        with self.stage(name, **detail) as note:
            note.own = own
            yield own, note

    def beside(self, name: str) -> CallContext:
        """The context of a part whose stages are its own; what it takes is added to this call's."""
        return CallContext(
            request_id=f"{self.request_id}-{name}",
            booking_id=f"{self.booking_id}-{name}",
            work_id=f"{self.work_id}-{name}",
            account=self.account,
            hops=self.hops,
            background=self.background,
            model=self.model,
            usages=self.usages,
            warnings=self.warnings,
            verdicts=self.verdicts,
            running=self.running,
            stops=self.stops,
            explain=self.explain,
            keeps_content=self.keeps_content,
            journal=self.journal,
            _trace=child_of(self.trace),
        )

    def nested(self, name: str, *, background: bool = False) -> CallContext:
        """The context of a call that is made for this one, as a part of its trace."""
        return CallContext(
            request_id=f"{self.request_id}-{name}",
            account=self.account,
            background=background,
            journal=self.journal,
            _trace=child_of(self.trace),
        )

    def new_id(self, prefix: str) -> str:
        """A fresh id for a reply: the first one has the call's nonce."""
        number, self._ids = self._ids, self._ids + 1
        return f"{prefix}-{derived_id(self.nonce, number) if number else self.nonce}"

    def warn(self, param: str, message: str) -> None:
        """Add a warning: the parameter was accepted and has no effect, or another one than usual."""
        self.warnings.append(ParameterWarning(param, message))

    @contextmanager
    def stage(self, name: str, **detail: object) -> Generator[StageNote]:
        """Times what is done within, for EXPLAIN; more may be noted of it. From any thread."""
        note = StageNote(detail, keeps_content=self.keeps_content)
        if len(self.stages) >= MAX_STAGES and not self.explain:
            yield note
            return
        start_s = time.monotonic() - self.arrival_s
        try:
            yield note
        except BaseException as error:
            note.error = note.error or str(getattr(error, "code", "") or type(error).__name__)
            raise
        finally:
            self.stages.append(note.stage(name, start_s, time.monotonic() - self.arrival_s, self.arrival_s))

    def add_stage(self, stage: Stage) -> None:
        """Add what was timed otherwise."""
        if len(self.stages) < MAX_STAGES or self.explain:
            self.stages.append(stage)

    def time_s(self) -> float:
        """The time, to be told to the client: that of the first time where the call is made again."""
        return time.time() if self.journal is None else self.journal.time_s()

    def when_ended(self, action: Callable[[], None]) -> None:
        """Do something when nothing is computed for this call any more."""
        running = [future for future in self.running if not future.done()]
        if running:
            asyncio.gather(*running).add_done_callback(lambda _: action())
        else:
            action()

    def fail(self, error: HeadraceError) -> None:
        """Remember the error that the call ended with."""
        self.error = error


def derived_id(origin: str, number: int) -> str:
    """The 32 hexadecimal digits of id number `number` of what has the id `origin`."""
    return hashlib.blake2b(f"{origin}/{number}".encode(), digest_size=16).hexdigest()


def new_request_id() -> str:
    """An id for a call whose client gave none."""
    return f"req_{os.urandom(16).hex()}"
