"""Making a response: for a client that waits, whole or streamed, or in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import MEDIA_TYPE, StreamedReply, sse_event
from headrace.api.http.generation import unless_gone
from headrace.api.openai.responses.output import ResponseAnswer
from headrace.api.openai.responses.replay_stream import ReplayStream
from headrace.api.openai.responses.schema import ResponseEvent, ResponseObject
from headrace.api.service import CLIENT_GONE
from headrace.errors import EngineStopped, HeadraceError
from headrace.inference.events import InferenceEvent
from headrace.inference.handler import OpenStream
from headrace.inference.response_store import InProgressResponse, ResponseStore
from headrace.journal.call_journal import CallJournal

LOG = logging.getLogger("headrace.api")


class EventWriter:
    """The stream of a response whose client waits for it."""

    media_type = MEDIA_TYPE

    def __init__(
        self, store: ResponseStore, making: InProgressResponse[ResponseObject], *, logprobs: bool
    ) -> None:
        self._store = store
        self._making = making
        self._written = bytearray()
        self._answer = ResponseAnswer(making.response, self._emit, logprobs=logprobs, time_s=making.time_s)

    def opening(self) -> bytes:
        """The events that announce the response."""
        self._answer.announce()
        return self._taken()

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """The response's events for a batch of events."""
        self._answer.take(events)
        return self._taken()

    def finish(self) -> bytes:
        """The events of the end."""
        self._answer.end(None)
        return self._taken()

    def failure(self, error: HeadraceError) -> bytes:
        """The events of a failure."""
        self._answer.end(error)
        return self._taken()

    def close(self) -> None:
        """The stream is over: store what has become of the response, cancelled where nothing ended it."""
        self._answer.end(None)
        self._store.ended(self._making)

    def _emit(self, event: ResponseEvent) -> None:
        self._written += sse_event(event, event.type)

    def _taken(self) -> bytes:
        """What was written since the last time."""
        data = bytes(self._written)
        self._written.clear()
        return data


async def streamed(
    stream: OpenStream, store: ResponseStore, making: InProgressResponse[ResponseObject], *, logprobs: bool
) -> Response:
    """The response's events as they come; a client that leaves stops it."""
    await _begin(stream, store, making)
    return StreamedReply(EventWriter(store, making, logprobs=logprobs), stream)


async def whole(
    http: HttpRequest,
    stream: OpenStream,
    store: ResponseStore,
    making: InProgressResponse[ResponseObject],
    *,
    logprobs: bool,
) -> Response:
    """The response once it has ended; raises what ended it early."""
    await _begin(stream, store, making)
    response = await unless_gone(http, made(stream, store, making, logprobs=logprobs))
    if response is None:
        LOG.info("%s: the client left before the reply", making.response.id)
        return Response(status_code=CLIENT_GONE)
    return json_response(response)


async def made(
    stream: OpenStream, store: ResponseStore, making: InProgressResponse[ResponseObject], *, logprobs: bool
) -> ResponseObject:
    """Read the stream to its end, and store the response; raises what ended it early."""
    answer = ResponseAnswer(making.response, lambda _: None, logprobs=logprobs, time_s=making.time_s)
    await _read(stream, answer, store, making)
    return making.response


async def in_background(
    stream: OpenStream,
    store: ResponseStore,
    making: InProgressResponse[ResponseObject],
    *,
    logprobs: bool,
    follow: bool,
    journal: CallJournal | None,
) -> Response:
    """The response as it begins, or with `follow` its events; it continues when the client leaves."""
    await _begin(stream, store, making)

    def emit(event: ResponseEvent) -> None:
        making.emit(sse_event(event, event.type))

    answer = ResponseAnswer(making.response, emit, logprobs=logprobs, time_s=making.time_s)
    answer.announce()

    async def run() -> None:
        try:
            await _read(stream, answer, store, making)
        except HeadraceError as error:
            LOG.info("%s failed: %s", making.response.id, error.message)
            if journal is not None:
                journal.is_interrupted = isinstance(error, EngineStopped)
        except asyncio.CancelledError:
            if journal is not None:
                journal.is_interrupted = True
            raise

    making.task = asyncio.create_task(run())
    if journal is not None:
        release = journal.hold()
        making.task.add_done_callback(lambda done: release())
    return ReplayStream(making, 0) if follow else json_response(making.response)


async def _begin(
    stream: OpenStream, store: ResponseStore, making: InProgressResponse[ResponseObject]
) -> None:
    try:
        await store.begin(making)
    except BaseException:
        await stream.aclose()
        raise


async def _read(
    stream: OpenStream,
    answer: ResponseAnswer,
    store: ResponseStore,
    making: InProgressResponse[ResponseObject],
) -> None:
    failure: HeadraceError | None = None
    try:
        async for batch in stream:
            answer.take(batch)
    except HeadraceError as error:
        failure = error
        raise
    finally:
        await stream.aclose()
        answer.end(failure)
        await asyncio.shield(store.ended(making))
