"""What the endpoints share: the model, the requests under way, threads for work that would block the loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request as HttpRequest

from headrace.api.http.api_keys import KeyRing
from headrace.api.http.call_context import CallContext, call_of
from headrace.api.http.event_bridge import EventBridge
from headrace.api.http.request_log import RequestLog
from headrace.config.settings import Settings
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished, RequestHandle
from headrace.engine.validation import MAX_PRIORITY
from headrace.errors import HeadraceError, InvalidRequest, ModelLoading, Overloaded
from headrace.storage.database import Database
from headrace.telemetry.request_metrics import ModelMetrics, RequestMetrics
from headrace.workers.model_manager import ModelManager

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

LOG = logging.getLogger("headrace.api")

CLIENT_GONE = 499  # never sent, only counted and logged
BODIES_LIMIT_BYTES = 256 * 2**20  # of all bodies that are being read or parsed
QUICK_BODY_BYTES = 4 * 1024
QUICK_TOKENS = 4 * 1024
"""What is not larger is worked on at once. A thread takes longer to begin than this takes, and while requests
wait for theirs, those that were first run ahead."""

T = TypeVar("T")


class ActiveRequest:
    """The engine requests of one HTTP request; lives on the event loop.

    `on_events(index, events)` gets the events of the request at `index`. `ended` resolves when every
    one of them has had its terminal event, with the first error or None.
    """

    def __init__(
        self,
        service: Service,
        model: LoadedModel,
        on_events: Callable[[int, list[EngineEvent]], None],
        call: CallContext,
        cost: Cost,
    ) -> None:
        self._service = service
        self._model = model
        self._let_go: Callable[[], None] = lambda: None
        self._on_events = on_events
        self._call = call
        self._cost = cost
        self._meters: list[RequestMetrics] = []
        self._tickets: list[RequestHandle] = []
        self._open = 0
        self._cancelled = False
        self._failure: HeadraceError | None = None
        self.ended: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()

    async def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Hand every request to the engine; where one is refused at the door, none goes on.

        In a thread where it may take a while: the door looks at every token, and grammars are compiled.
        """
        sinks = [
            self._service.mailbox.sink(lambda events, index=index: self._receive(index, events))
            for index in range(len(requests))
        ]
        engine = self._model.engine

        def submit_all() -> HeadraceError | None:
            try:
                for request, sink in zip(requests, sinks, strict=True):
                    ticket = engine.submit(request, sink)
                    self._tickets.append(ticket)
                    if self._cancelled:  # meanwhile, on the event loop
                        ticket.cancel()
            except HeadraceError as error:
                return error
            return None

        self._open = len(requests)
        meter = self._service.meter_of(self._model.name)
        self._meters = [RequestMetrics(meter, self._call.arrival_s) for _ in requests]
        self._let_go = self._service.models.share(self._model, self._call)
        self._service.active_requests.add(self)
        self._service.queued_tokens += self._cost.prompt_tokens
        try:
            if self._cost.prompt_tokens <= QUICK_TOKENS and not any(one.constraint for one in requests):
                refusal = submit_all()
            else:
                refusal = await self._service.run_in_thread(submit_all)
        except BaseException:
            self._abandon()
            raise
        if refusal is not None:
            self._abandon()
            raise refusal

    def _abandon(self) -> None:
        self.cancel()
        self._settle(self._cost.reserved_tokens)

    def _settle(self, returned_tokens: int) -> None:
        """Nothing is under way any more."""
        if self in self._service.active_requests:
            self._service.active_requests.discard(self)
            self._begun()
            self._let_go()
            self._call.account.settle(returned_tokens)

    def _begun(self) -> None:
        """Its prompts wait no longer."""
        self._service.queued_tokens -= self._cost.prompt_tokens
        self._cost = replace(self._cost, prompt_tokens=0)

    def cancel(self) -> None:
        """Stop whatever has not ended; pages are free within one step. No further event is passed on."""
        if not self._cancelled and not self.ended.done():
            self._cancelled = True
            for ticket in self._tickets:
                ticket.cancel()

    def pause(self, paused: bool) -> None:
        """Compute no more while the reader is behind, or go on."""
        for ticket in self._tickets:
            ticket.pause(paused)

    def fail(self, error: HeadraceError) -> None:
        """Stop, and report `error` as the reason."""
        self._failure = self._failure or error
        self.cancel()

    def _receive(self, index: int, events: list[EngineEvent]) -> None:
        last, now_s = events[-1], time.monotonic()
        if self._cost.prompt_tokens:
            self._begun()
            self._call.first_token_s = now_s - self._call.arrival_s
        self._meters[index].take(events, now_s)
        if not self._cancelled:
            try:
                self._on_events(index, events)
            except Exception:  # it must end this reply only: other requests' events come after these
                LOG.exception("a reply cannot be written")
                self.fail(HeadraceError("the server failed; its log has the details"))
        if isinstance(last, RequestFailed):
            self._call.note(last.error)
            self.fail(last.error)
        if isinstance(last, RequestFinished):
            self._call.usages.append(last.usage)
        if isinstance(last, RequestFinished | RequestFailed):
            self._open -= 1
            if self._open == 0:
                used = sum(usage.prompt_tokens + usage.completion_tokens for usage in self._call.usages)
                self._settle(self._cost.reserved_tokens - used)
                if not self.ended.done():
                    self.ended.set_result(self._failure)


class Cost(Struct, frozen=True):
    """What a request is charged before it runs: its prompts, and these with all that it may generate."""

    prompt_tokens: int
    reserved_tokens: int


class Service:
    """The served models and what is under way. Made before the loop runs; then it belongs to the loop.

    `starting` until the default model has loaded for the first time: so long nothing is taken.
    """

    def __init__(self, models: ModelManager, settings: Settings) -> None:
        self.models = models
        self.settings = settings
        self.database = Database(settings.store_file)
        self.keys = KeyRing(settings, self.database)
        self.meter = ModelMetrics()
        """What is counted of HTTP calls; what models do is in `meter_of`."""
        self._meters: dict[str, ModelMetrics] = {}
        self.starting = models.default.model is None
        self._log = RequestLog(self.database, self.meter) if settings.log_requests else None
        self.active_requests: set[ActiveRequest] = set()
        self.open_calls = 0
        self.queued_tokens = 0  # of prompts of which nothing has come back yet
        self._body_bytes = 0
        self.draining = False
        self._mailbox: EventBridge | None = None
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="headrace-prompt")

    def check_started(self) -> None:
        """Raise ModelLoading until the default model is there for the first time."""
        if self.starting:
            raise ModelLoading("the model is loading: try again in a moment", reason="loading")

    def meter_of(self, name: str) -> ModelMetrics:
        """The meter of a model's requests."""
        return self._meters.setdefault(name, ModelMetrics())

    @contextmanager
    def admitted(self, call: CallContext) -> Generator[None]:
        """Count a call that wants something computed, or refuse it before a byte of its body is read."""
        if self.draining:
            raise Overloaded(
                "the server is shutting down: send the request elsewhere",
                retry_after_s=5.0,
                reason="draining",
            )
        self.check_started()
        most, tokens = self.settings.max_concurrent_requests, self.settings.max_queued_tokens
        if self.open_calls >= most:
            raise Overloaded(f"{most:,} requests are under way, as many as are allowed: try again later")
        if self.queued_tokens >= tokens:
            raise Overloaded(
                f"{self.queued_tokens:,} tokens of prompts wait, at most {tokens:,} may: try again later",
                reason="queued_tokens",
            )
        call.account.enter()
        self.open_calls += 1
        try:
            yield
        finally:
            self.open_calls -= 1
            call.account.leave()
            self.release_body(call)

    def ended(self, call: CallContext) -> None:
        """A call is over, whatever became of it."""
        call.status = call.status or CLIENT_GONE
        for release in call.holds:
            release()
        self.meter.replies[call.status] += 1
        if call.refusal is not None:
            self.meter.rejected[call.refusal] += 1
        if self._log is not None and call.method == "POST":
            self._log.add(call, call.model or self.models.default.name)

    def hold_body(self, call: CallContext, size: int) -> None:
        """Make room for `size` more bytes of the call's body; Overloaded where all bodies take too much."""
        if self._body_bytes + size > BODIES_LIMIT_BYTES:
            raise Overloaded(
                f"bodies of {self._body_bytes:,} bytes are being read, at most {BODIES_LIMIT_BYTES:,} may be "
                "at a time: try again later",
                reason="body_bytes",
            )
        self._body_bytes += size
        call.body_bytes += size

    def release_body(self, call: CallContext) -> None:
        """The call's body is not needed any more."""
        self._body_bytes -= call.body_bytes
        call.body_bytes = 0

    @property
    def mailbox(self) -> EventBridge:
        """Where engine events arrive; only on the event loop."""
        if self._mailbox is None:
            self._mailbox = EventBridge(asyncio.get_running_loop())
        return self._mailbox

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` (templates, long prompts) in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def use(
        self, call: CallContext, name: str | None, *, keep_alive_s: float | None = None
    ) -> LoadedModel:
        """The model of that name (None: the default one), kept in memory until `call` has ended.

        `keep_alive_s` is how long it stays after that unused, where nobody says otherwise: 0 not at all,
        negative until the memory is needed, None what is configured. Raises ModelNotFound, ModelLoading where
        it takes too long to wait for, Overloaded where models in use leave no memory for it.
        """
        entry = self.models.find(name)
        call.model = entry.name
        model, release = await self.models.acquire(entry, keep_alive_s, user=call)
        call.holds.append(release)
        return model

    async def start(
        self,
        model: LoadedModel,
        requests: Sequence[EngineRequest],
        on_events: Callable[[int, list[EngineEvent]], None],
        call: CallContext,
    ) -> ActiveRequest:
        """Submit; raises what the engine refuses at the door, or RateLimited. `call` is charged for it."""
        asked, limit = sum(request.params.n for request in requests), model.engine.limits.max_choices
        if asked > limit:  # not Overloaded: it would be so on every retry
            raise InvalidRequest(
                f"the request asks for {asked:,} choices (prompts times n), at most {limit:,} are computed "
                "at a time: split it",
                param="n",
            )
        if call.idle:
            requests = [replace(request, priority=MAX_PRIORITY) for request in requests]
        cost = self._cost(requests)
        call.account.reserve(cost.reserved_tokens)
        generation = ActiveRequest(self, model, on_events, call, cost)
        await generation.submit(requests)
        return generation

    def _cost(self, requests: Sequence[EngineRequest]) -> Cost:
        prompts = sum(len(request.prompt) for request in requests)
        return Cost(prompts, prompts + sum(map(_most_tokens, requests)))

    def close(self) -> None:
        """Stop the threads and close the store; the model belongs to the caller."""
        if self._log is not None:
            self._log.close()
        self.database.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _most_tokens(request: EngineRequest) -> int:
    """How many tokens a request may generate, as far as it says so."""
    most = request.params.n * (request.params.max_tokens or 0)
    total = None if request.scaling is None else request.scaling.max_total_tokens
    return most if total is None else min(most or total, total)


def get_service(request: HttpRequest) -> Service:
    """The service of the app that `request` came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def key_salt(request: HttpRequest, extra: str | None) -> str:
    """What separates prefix caches: the caller's key (hashed) and its own `prompt_cache_key`."""
    key = call_of(request).account.cache_salt
    return hashlib.sha256(f"{key}\0{extra or ''}".encode()).hexdigest()[:16] if key or extra else ""


def new_id(prefix: str) -> str:
    """A fresh id for a reply."""
    return f"{prefix}-{uuid.uuid4().hex}"


def now_s() -> int:
    """Wall-clock seconds, for the `created` field only."""
    return int(time.time())
