"""Making a response: for a client that waits, whole or streamed, or in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.disconnect import wait_for_end
from headrace.api.http.errors import json_response
from headrace.api.http.event_stream import StreamedReply
from headrace.api.http.sse import MEDIA_TYPE, sse_event
from headrace.api.openai.logprobs import chat_logprobs
from headrace.api.openai.output_formatter import AnswerReader
from headrace.api.openai.responses.items import Item
from headrace.api.openai.responses.output import ResponseAnswer
from headrace.api.openai.responses.replay_stream import ReplayStream
from headrace.api.openai.responses.response_manager import (
    InProgressResponse,
    ResponseManager,
    get_response_manager,
)
from headrace.api.openai.responses.schema import ResponseEvent
from headrace.api.openai.schema import ContentLogprob
from headrace.api.service import CLIENT_GONE, ActiveRequest, get_service
from headrace.chat.prompt import ChatPrompt
from headrace.engine.request import EngineEvent, EngineRequest, TokenLogprob
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

LOG = logging.getLogger("headrace.api")


class PreparedResponse(Struct, frozen=True):
    """What a request asks for, read and checked. `inputs` are its own items, the conversation has all."""

    owner: str
    inputs: list[Item]
    conversation: ChatPrompt
    request: EngineRequest


class EventWriter:
    """The stream of a response whose client waits for it."""

    media_type = MEDIA_TYPE

    def __init__(self, desk: ResponseManager, making: InProgressResponse) -> None:
        self._desk = desk
        self._making = making
        self._written = bytearray()
        self.answer: ResponseAnswer

    def emit(self, event: ResponseEvent) -> None:
        """An event for the stream."""
        self._written += sse_event(event, event.type)

    def events(self, index: int, events: list[EngineEvent]) -> bytes:
        """The response's events for the engine's."""
        self.answer.take(events)
        return self.taken()

    def finish(self) -> bytes:
        """The events of the end."""
        return self._end(None)

    def failure(self, error: HeadraceError) -> bytes:
        """The events of a failure."""
        return self._end(error)

    def _end(self, error: HeadraceError | None) -> bytes:
        self.answer.end(error)
        self._desk.ended(self._making)
        return self.taken()

    def taken(self) -> bytes:
        """What was written since the last time."""
        data = bytes(self._written)
        self._written.clear()
        return data


class Run:
    """One response on its way from a prepared request to the client, or to the store."""

    def __init__(
        self,
        http: HttpRequest,
        model: LoadedModel,
        ready: PreparedResponse,
        making: InProgressResponse,
        logprobs: bool,
    ) -> None:
        self._http = http
        self._service, self._desk, self._call = get_service(http), get_response_manager(http), call_of(http)
        self._model = model
        self._ready = ready
        self._making = making
        self._logprobs = logprobs

    async def whole(self) -> Response:
        """The response once it has ended; raises what has ended it before its time."""
        answer = self._answer(lambda event: None)
        await self._desk.begin(self._making)
        generation = await self._start(answer)
        stayed, failure = False, None
        try:
            stayed = await wait_for_end(self._http, generation)
        except HeadraceError as error:
            failure = error
            raise
        finally:
            answer.end(failure)
            kept = self._desk.ended(self._making)
        if not stayed:
            LOG.info("%s: the client left before the reply", self._making.response.id)
            return Response(status_code=CLIENT_GONE)
        await kept
        return json_response(self._making.response)

    async def streamed(self) -> Response:
        """The response's events as they come; a client that leaves stops it."""
        writer = EventWriter(self._desk, self._making)
        writer.answer = self._answer(writer.emit)
        await self._desk.begin(self._making)
        writer.answer.announce()
        reply = StreamedReply(writer, writer.taken())
        try:
            await reply.submit(self._service, self._model, [self._ready.request], self._call)
        except BaseException:
            await self._desk.drop(self._making)
            raise
        return reply

    async def in_background(self, *, stream: bool) -> Response:
        """The response as it begins, or its events; it goes on whoever leaves."""
        answer = self._answer(self._making.emit)
        await self._desk.begin(self._making)
        answer.announce()
        generation = await self._start(answer)

        def ended(error: HeadraceError | None) -> None:
            answer.end(error)
            self._desk.ended(self._making)

        self._making.generation = generation
        generation.ended.add_done_callback(lambda end: ended(end.result()))
        return ReplayStream(self._making, 0) if stream else json_response(self._making.response)

    async def _start(self, answer: ResponseAnswer) -> ActiveRequest:
        """Hand the request to the engine; what it refuses is not kept."""

        def feed(index: int, events: list[EngineEvent]) -> None:
            answer.take(events)

        try:
            return await self._service.start(self._model, [self._ready.request], feed, self._call)
        except BaseException:
            await self._desk.drop(self._making)
            raise

    def _answer(self, emit: Callable[[ResponseEvent], None]) -> ResponseAnswer:
        conversation, tokenizer = self._ready.conversation, self._model.tokenizer
        reader = AnswerReader(None if conversation.plain else conversation.parser())

        def show(tokens: Sequence[TokenLogprob]) -> list[ContentLogprob]:
            return chat_logprobs(tokenizer, tokens).content

        return ResponseAnswer(self._making.response, reader, emit, show if self._logprobs else None)
