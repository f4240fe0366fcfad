"""How a statement reaches models: a runner, the call of each request, and what went wrong."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import HeadraceError, Overloaded
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, StageNote, new_request_id
from headrace.inference.local_handler import fingerprint_of
from headrace.inference.model_runner import ModelRunner
from headrace.inference.price_source import RemoteBounds
from headrace.telemetry.trace_context import child_of

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

T = TypeVar("T")
S = TypeVar("S")
LONGEST_PAUSE_S = 5.0
MAX_PAUSES = 100
MAX_SHOWN = 8


class Models(Protocol):
    """Models that statements may ask, whatever holds them."""

    @property
    def runner(self) -> ModelRunner:
        """Lives on the loop that `submit` uses."""
        ...

    @property
    def account(self) -> Account:
        """Whose requests these are."""
        ...

    @property
    def remote(self) -> RemoteBounds | None:
        """What knows prices and bounds of remote models, where there are some."""
        ...

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin work on the models' event loop, from another thread."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """While the statement's thread waits for such work: others may run meanwhile. Raises Overloaded where
        too many wait."""
        ...


class ModelUsage(Struct):
    """What a statement has taken of models so far. `failed` are rows whose value is NULL for want of an
    answer, `cut` texts that ended at max_tokens, `dropped` plans that were not made, by the reason."""

    rows: int = 0
    computed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    failed: Counter[str] = msgspec.field(default_factory=Counter[str])
    cut: int = 0
    dropped: Counter[str] = msgspec.field(default_factory=Counter[str])


class StatementWork:
    """The requests of one statement. Lives on the models' event loop."""

    def __init__(self, models: Models, usage: ModelUsage) -> None:
        self.runner = models.runner.urgent(BATCH_PRIORITY)
        self._account = models.account.for_background()
        self.remote = models.remote
        self.usage = usage
        self.warnings: dict[str, None] = {}
        self.batch: CallContext | None = None
        """What requests are parts of; of the first MAX_SHOWN their own parts are kept."""
        self.requests = 0
        """Of the batch, those that have been computed."""

    def call(self) -> CallContext:
        """The call of one request: it yields to all others."""
        trace = None if self.batch is None else child_of(self.batch.trace)
        return CallContext(request_id=new_request_id(), account=self._account, background=True, _trace=trace)

    def ended(self, call: CallContext) -> None:
        """Count what a request took, and keep what it warns of."""
        for one in call.usages:
            self.usage.prompt_tokens += one.prompt_tokens
            self.usage.output_tokens += one.completion_tokens
        if call.usages and (batch := self.batch) is not None:
            self.requests += 1
            if self.requests <= MAX_SHOWN:
                start_s, now_s = call.arrival_s - batch.arrival_s, time.monotonic() - batch.arrival_s
                batch.add_stage(StageNote({}, call).stage("request", start_s, now_s, batch.arrival_s))
        self.warnings |= dict.fromkeys(f"{one.param}: {one.message}" for one in call.warnings)

    async def asked(self, work: Callable[[CallContext], Coroutine[Any, Any, T]]) -> T:
        """What `work` gives with a call of its own. Where there is no room for it, it waits."""
        for _ in range(MAX_PAUSES):
            call = self.call()
            try:
                return await work(call)
            except Overloaded as error:
                pause_s = min(error.retry_after_s or 1.0, LONGEST_PAUSE_S)
            finally:
                self.ended(call)
            await asyncio.sleep(pause_s)
        raise Overloaded("there was no room for the statement's requests: send it again later", reason="sql")


async def in_order_of_arrival(
    work: Callable[[S], Coroutine[Any, Any, T]], given: Iterable[S], most: int
) -> AsyncGenerator[T]:
    """The results of `work` for each of `given`, up to `most` at a time, as they come. The first error ends
    it."""
    waiting = iter(given)
    running: set[asyncio.Task[T]] = set()
    try:
        while True:
            for one in waiting:
                running.add(asyncio.ensure_future(work(one)))
                if len(running) >= most:
                    break
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def drained(values: AsyncGenerator[T]) -> list[T]:
    """All of it."""
    async with aclosing(values):
        return [one async for one in values]


def model_identity(model: LoadedModel) -> str:
    """What the answers of a model depend on: its weights, its template and its defaults."""
    template = "" if model.template is None else model.template.source
    parts: list[object] = [
        fingerprint_of(model),
        template,
        repr(model.defaults),
        repr(sorted(model.template_variables.items())),
        model.context_length,
    ]
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def failure(error: HeadraceError) -> str:
    """What is counted of a row without an answer."""
    return type(error).__name__
