"""Which calls are let in: not while the server starts or drains, and not more than it can hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager

from headrace.errors import ModelLoading, Overloaded
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Batch, EventBatches, Handler, Unchanged
from headrace.inference.requests import InferenceRequest


class AdmissionGate:
    """Counts the calls in progress. Lives on the event loop.

    A surface that reads large bodies enters before it reads (`admitted`), so that a refusal costs nothing.
    """

    def __init__(self, max_calls: int, max_queued_tokens: int, queued_tokens: Callable[[], int]) -> None:
        self.max_calls, self.max_queued_tokens = max_calls, max_queued_tokens
        self._queued_tokens = queued_tokens
        self.starting = False
        """True until the default model has loaded; requests get ModelLoading until then."""
        self.draining = False
        self.open_calls = 0
        self._admitted: set[CallContext] = set()

    @property
    def calls(self) -> tuple[CallContext, ...]:
        """Those in progress."""
        return tuple(self._admitted)

    def has(self, call: CallContext) -> bool:
        """Whether a call is one of them."""
        return call in self._admitted

    def check_started(self) -> None:
        """Raise ModelLoading until the default model has loaded for the first time."""
        if self.starting:
            raise ModelLoading("the model is loading: try again in a moment", reason="loading")

    @contextmanager
    def admitted(self, call: CallContext) -> Generator[None]:
        """Count a call while it is in progress. Raises Overloaded, ModelLoading or RateLimited."""
        if call in self._admitted:
            yield
            return
        self._check_open()
        if not call.background:  # who runs those counts them
            self._check_load()
        call.account.enter()
        self.open_calls += not call.background
        self._admitted.add(call)
        try:
            yield
        finally:
            self._admitted.discard(call)
            self.open_calls -= not call.background
            call.account.leave()

    @contextmanager
    def readmitted(self, call: CallContext) -> Generator[None]:
        """Count a call that goes on after a restart: it was admitted before."""
        self.open_calls += 1
        self._admitted.add(call)
        try:
            yield
        finally:
            self._admitted.discard(call)
            self.open_calls -= 1

    def _check_open(self) -> None:
        if self.draining:
            raise Overloaded(
                "the server is shutting down: send the request elsewhere",
                retry_after_s=5.0,
                reason="draining",
            )
        self.check_started()

    def _check_load(self) -> None:
        if self.open_calls >= self.max_calls:
            raise Overloaded(f"{self.max_calls:,} requests are in progress, the maximum: try again later")
        waiting = self._queued_tokens()
        if waiting >= self.max_queued_tokens:
            raise Overloaded(
                f"{waiting:,} prompt tokens wait, at most {self.max_queued_tokens:,} may: try again later",
                reason="queued_tokens",
            )


class AdmissionHandler:
    """Lets a request pass through the gate, unless its surface did so earlier."""

    def __init__(self, inner: Handler, gate: AdmissionGate) -> None:
        self._inner, self._gate = inner, gate

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        is_counted = not call.account.is_shared or self._gate.has(call)
        with ExitStack() as entered:
            entered.enter_context(self._gate.admitted(call))
            batches = self._inner.handle(request, call)
            held = entered.pop_all()

            def count(_: Batch) -> Awaitable[None]:
                return call.account.enter_shared(held)

            return Unchanged(batches, first=None if is_counted else count, ended=held.close)
