"""The interface between whatever asks a model something and whatever answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, Self

from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, Prepared
from headrace.inference.requests import InferenceRequest

Batch = Sequence[InferenceEvent]
Look = Callable[[Batch], Awaitable[None] | None]
"""What sees a batch, before those do that come after."""


class EventBatches(Protocol):
    """Events in order, in batches: those that are ready at the same time, as after one step of an engine.

    Batches instead of single events save one wake-up of the consumer per event. The first batch is
    `Prepared`, the second `Started`; an error before that means that nothing was computed. A request ends
    with the stream, or with the HeadraceError that it raises. An asynchronous generator is one.
    """

    def __aiter__(self) -> AsyncIterator[Batch]: ...

    def __anext__(self) -> Awaitable[Batch]: ...

    def aclose(self) -> Awaitable[None]:
        """Cancel what is running. The consumer calls this, also after the stream's end or an error."""
        ...


class Handler(Protocol):
    """Answers requests: a local model, a remote one, or a wrapper around another handler.

    A wrapper adds one concern (limits, a cache, a router) and delegates to the handler inside it, as
    httpx's transports do. One that changes no event returns `Unchanged`.
    """

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """The events of `request`. `call` is made once per request by the surface and passed along."""
        ...


class Unchanged:
    """The batches of another handler as they are. `first` sees the first one, `started` the second; `ended`
    runs when it is closed.

    A generator that yields each batch again costs the execution of its frame per token of every stream. This
    returns the awaitables of the other handler.
    """

    __slots__ = ("_batches", "_ended", "_looks")

    def __init__(
        self,
        batches: EventBatches,
        *,
        ended: Callable[[], None],
        first: Look | None = None,
        started: Look | None = None,
    ) -> None:
        self._batches = batches
        self._ended: Callable[[], None] | None = ended
        looks = (first,) if started is None else (first, started)
        self._looks = [] if looks == (None,) else [*reversed(looks)]  # the last one is next

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Batch]:
        return self._see() if self._looks else self._batches.__anext__()

    async def _see(self) -> Batch:
        batch = await self._batches.__anext__()
        look = self._looks.pop()
        if look is not None:
            waiting = look(batch)
            if waiting is not None:
                await waiting
        return batch

    async def aclose(self) -> None:
        """Close what is inside; then `ended` runs, once."""
        try:
            await self._batches.aclose()
        finally:
            ended, self._ended = self._ended, None
            if ended is not None:
                ended()


class OpenStream:
    """The stream of a request that was accepted. Its consumer closes it."""

    __slots__ = ("_batches", "prepared")

    def __init__(self, prepared: Prepared, batches: EventBatches) -> None:
        self.prepared = prepared
        self._batches = batches

    def __aiter__(self) -> EventBatches:
        return self._batches

    async def aclose(self) -> None:
        """Cancel what has not ended."""
        await self._batches.aclose()


async def open_stream(handler: Handler, request: InferenceRequest, call: CallContext) -> OpenStream:
    """Start a request. Raises what refuses it, so that a surface can still answer with an error."""
    batches = handler.handle(request, call)
    try:
        [prepared] = await batches.__anext__()
        assert isinstance(prepared, Prepared)
        await batches.__anext__()
    except BaseException:
        await batches.aclose()
        raise
    return OpenStream(prepared, batches)
