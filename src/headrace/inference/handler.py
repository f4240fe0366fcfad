"""The interface between whatever asks a model something and whatever answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, Prepared
from headrace.inference.requests import InferenceRequest

EventBatches = AsyncGenerator[Sequence[InferenceEvent]]
"""Events in order, in batches: those that are ready at the same time, as after one step of an engine.

Batches instead of single events save one wake-up of the consumer per event. The first batch is `Prepared`,
the second `Started`; an error before that means that nothing was computed. A request ends with the stream, or
with the HeadraceError that it raises. Closing the stream cancels what is running."""


class Handler(Protocol):
    """Answers requests: a local model, a remote one, or a wrapper around another handler.

    A wrapper adds one concern (limits, a cache, a router) and delegates to the handler inside it, as
    httpx's transports do.
    """

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """The events of `request`. `call` is made once per request by the surface and passed along."""
        ...


class OpenStream:
    """The stream of a request that was accepted. Close it, or read it to its end."""

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
        [prepared] = await anext(batches)
        assert isinstance(prepared, Prepared)
        await anext(batches)
    except BaseException:
        await batches.aclose()
        raise
    return OpenStream(prepared, batches)
