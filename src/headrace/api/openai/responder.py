"""From engine events to a reply, whole or streamed, in the shape of either generating endpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import UNSET, Struct, UnsetType, field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.disconnect import wait_for_end
from headrace.api.http.errors import error_body, json_response
from headrace.api.http.event_stream import StreamedReply
from headrace.api.http.sse import DONE, MEDIA_TYPE, sse_event
from headrace.api.openai.best_of import scaling_note
from headrace.api.openai.schema import (
    ChatChoice,
    ChatChunkChoice,
    CompletionChunkBody,
    CompletionDetails,
    ParameterWarning,
    PromptDetails,
    PromptLogprobList,
    Reply,
    ScalingNote,
    TextChoice,
    UsageBody,
)
from headrace.api.service import CLIENT_GONE, get_service, now_s
from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    EngineRequest,
    PromptLogprobs,
    RequestFinished,
    Selection,
    TokenLogprob,
    Usage,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

LOG = logging.getLogger("headrace.api")


class ChoiceOutput(Struct):
    """One choice of a reply that is not streamed."""

    text: list[str] = field(default_factory=list[str])
    token_counts: list[int] = field(default_factory=list[int])  # of each text
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    done: ChoiceFinished | None = None
    scaling: ScalingNote | UnsetType = UNSET


class OutputFormatter(Protocol):
    """What differs between the endpoints: the choices."""

    reply_object: str
    chunk_object: str
    keep: int
    """Choices to return of each request: fewer than were computed with `vote` and `best_of`."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning in all choices, once they are shaped."""
        ...

    @property
    def prompt_logprobs(self) -> PromptLogprobList | UnsetType:
        """How likely the prompt was, where that belongs to the reply and not to its choices."""
        ...

    def prompt(self, index: int, event: PromptLogprobs) -> None:
        """Take note of how likely the prompt of the request at `index` was."""
        ...

    def opening(self, index: int) -> ChatChunkChoice | TextChoice | None:
        """What a choice's stream begins with, before any text."""
        ...

    def delta(self, index: int, event: Delta) -> ChatChunkChoice | TextChoice | None:
        """A chunk of new text; None where the event adds nothing to be seen."""
        ...

    def ending(self, index: int, event: ChoiceFinished) -> ChatChunkChoice | TextChoice:
        """A choice's last chunk."""
        ...

    def whole(self, index: int, choice: ChoiceOutput) -> ChatChoice | TextChoice:
        """A whole choice."""
        ...


class ResponseMeta(Struct, frozen=True):
    """The fields that open every reply and chunk."""

    id: str
    model: str
    warnings: list[ParameterWarning]
    include_usage: bool
    created: int = field(default_factory=now_s)


def usage_body(usages: Sequence[Usage], reasoning_tokens: int = 0) -> UsageBody:
    """Token counts, added up over the prompts of one HTTP request."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    reasons = [usage.cache_miss_reason for usage in usages if usage.cache_miss_reason is not None]
    details = PromptDetails(sum(usage.cached_tokens for usage in usages), reasons[0] if reasons else None)
    saved = sum(usage.tokens_saved for usage in usages)
    parts = CompletionDetails(
        reasoning_tokens,
        sum(usage.accepted_prediction_tokens for usage in usages),
        sum(usage.rejected_prediction_tokens for usage in usages),
        saved or UNSET,
    )
    return UsageBody(prompt, completion, prompt + completion, details, parts)


def _seed(done: Sequence[RequestFinished]) -> int | UnsetType:
    """The seed that repeats the reply; none where each of several prompts drew its own."""
    seeds = {one.seed for one in done}
    return seeds.pop() if len(seeds) == 1 else UNSET


async def respond(
    http: HttpRequest,
    model: LoadedModel,
    requests: list[EngineRequest],
    shape: OutputFormatter,
    head: ResponseMeta,
    *,
    stream: bool,
) -> Response:
    """Submit `requests` and reply; raises what the engine refuses at the door."""
    if stream:
        reply = StreamedReply(StreamChunks(requests, shape, head))
        await reply.submit(get_service(http), model, requests, call_of(http))
        return reply
    collector = await collect(http, model, requests)
    if collector is None:
        return Response(status_code=CLIENT_GONE)
    for index, event in collector.prompts.items():
        shape.prompt(index, event)
    choices = [choice for index in range(len(requests)) for choice in collector.best(index, shape.keep)]
    shaped = [shape.whole(index, choice) for index, choice in enumerate(choices)]
    return json_response(
        Reply(
            id=head.id,
            object=shape.reply_object,
            created=head.created,
            model=head.model,
            choices=shaped,
            usage=usage_body([done.usage for done in collector.done], shape.reasoning_tokens),
            seed=_seed(collector.done),
            warnings=head.warnings or UNSET,
            prompt_logprobs=shape.prompt_logprobs,
        )
    )


async def collect(
    http: HttpRequest, model: LoadedModel, requests: list[EngineRequest]
) -> ChoiceCollector | None:
    """Submit `requests` and wait for all that they say; None where the client left before.

    Raises what the engine refuses at the door, and what ends a request later.
    """
    collector = ChoiceCollector(requests)
    generation = await get_service(http).start(model, requests, collector.feed, call_of(http))
    if not await wait_for_end(http, generation):
        LOG.info("%s: the client left before the reply", requests[0].request_id)
        return None
    return collector


class ChoiceCollector:
    """Gathers the events of a reply that is not streamed."""

    def __init__(self, requests: Sequence[EngineRequest]) -> None:
        self.choices = [[ChoiceOutput() for _ in range(request.params.n)] for request in requests]
        self.done: list[RequestFinished] = []
        self.prompts: dict[int, PromptLogprobs] = {}
        self._requests = requests
        self._verdicts: dict[int, Selection] = {}

    def feed(self, index: int, events: list[EngineEvent]) -> None:
        """Take the events of the request at `index`."""
        for event in events:
            if isinstance(event, Delta):
                choice = self.choices[index][event.choice]
                choice.text.append(event.text)
                choice.token_counts.append(len(event.tokens))
                choice.logprobs.extend(event.logprobs)
            elif isinstance(event, ChoiceFinished):
                self.choices[index][event.choice].done = event
            elif isinstance(event, PromptLogprobs):
                self.prompts[index] = event
            elif isinstance(event, Selection):
                self._verdicts[index] = event
            elif isinstance(event, RequestFinished):
                self.done.append(event)

    def best(self, index: int, keep: int) -> list[ChoiceOutput]:
        """The choices of the request at `index` that are given out, best first where they were judged."""
        choices, verdict = self.choices[index], self._verdicts.get(index)
        scaling = self._requests[index].scaling
        for choice in choices:
            choice.scaling = scaling_note(scaling, verdict, choice.done)
        if verdict is None or keep >= len(choices):
            return choices[:keep]
        return [choices[place] for place in verdict.order[:keep]]


class StreamChunks:
    """Turns engine events into the server-sent events of either generating endpoint."""

    media_type = MEDIA_TYPE

    def __init__(self, requests: Sequence[EngineRequest], shape: OutputFormatter, head: ResponseMeta) -> None:
        self._per_request = requests[0].params.n
        self._shape = shape
        self._head = head
        self._opened: set[int] = set()
        self._done: list[RequestFinished] = []
        self._warnings = head.warnings

    def events(self, index: int, events: list[EngineEvent]) -> bytes:
        """Chunks for the events of the request at `index`."""
        written = bytearray()
        for event in events:
            if isinstance(event, RequestFinished):
                self._done.append(event)
            elif isinstance(event, PromptLogprobs):
                self._shape.prompt(index, event)
            elif isinstance(event, Delta | ChoiceFinished):
                choice = index * self._per_request + event.choice
                parts = [self._shape.opening(choice)] if choice not in self._opened else []
                self._opened.add(choice)
                if isinstance(event, Delta):
                    parts.append(self._shape.delta(choice, event))
                else:
                    parts.append(self._shape.ending(choice, event))
                for part in parts:
                    if part is not None:
                        written += sse_event(self._chunk(part))
        return bytes(written)

    def _chunk(self, choice: ChatChunkChoice | TextChoice) -> CompletionChunkBody:
        warnings, self._warnings = self._warnings, []
        return CompletionChunkBody(
            id=self._head.id,
            object=self._shape.chunk_object,
            created=self._head.created,
            model=self._head.model,
            choices=[choice],
            usage=None if self._head.include_usage else UNSET,
            warnings=warnings or UNSET,
        )

    def finish(self) -> bytes:
        """The chunk of token counts, if it was asked for, and the end."""
        return (sse_event(self._counts()) if self._head.include_usage else b"") + DONE

    def failure(self, error: HeadraceError) -> bytes:
        """The chunk that ends a stream that failed."""
        return sse_event(error_body(error))

    def _counts(self) -> CompletionChunkBody:
        return CompletionChunkBody(
            id=self._head.id,
            object=self._shape.chunk_object,
            created=self._head.created,
            model=self._head.model,
            choices=[],
            usage=usage_body([done.usage for done in self._done], self._shape.reasoning_tokens),
            seed=_seed(self._done),
        )
