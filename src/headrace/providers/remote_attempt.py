"""One attempt to have a request answered by one target."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from headrace.chat.messages import message_texts
from headrace.chat.tool_formats.events import CallStart, Text
from headrace.engine.request import Timing, Usage
from headrace.inference.attempts import TokenCounts
from headrace.inference.batches.deferral import Deferral
from headrace.inference.call_context import HOPS
from headrace.inference.events import InferenceEvent, OutputDelta, PromptFinished
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    Prompt,
    TextPair,
)
from headrace.providers.answer import MAX_PIECES, Answer, MalformedAnswer, UnusableAnswer
from headrace.providers.batches.stored_reply import StoredReply, later_reply
from headrace.providers.bounds import choices_of, plausible
from headrace.providers.dialect import Dialect, Outgoing, UpstreamReader, Warn
from headrace.providers.failure import AttemptFailed, Failure, Kind, shown, without_secret
from headrace.providers.sse import SseEvent
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget
from headrace.providers.upstream import Upstream, UpstreamReply, retry_after_s
from headrace.providers.usage import ReportedUsage, estimated, so_far, usage_of, without_key

BATCH = "batch"
"""The way of processing of lines in a provider's batch."""


class Sending:
    """How a target is asked: `was_sent` once anything may have reached it."""

    def __init__(
        self,
        target: RemoteTarget,
        dialect: Dialect,
        upstream: Upstream,
        *,
        key: str | None,
        hops: Sequence[str],
        trace: Mapping[str, str],
        deadline_s: float,
        warn: Warn,
        deferral: Deferral | None = None,
    ) -> None:
        """`deferral` of a line that the provider's own batch may answer."""
        self.deferral = deferral
        self.target, self.dialect, self.key = target, dialect, key
        self._tell = warn
        self._upstream, self._deadline_s = upstream, deadline_s
        self._passed_on = {HOPS: ",".join(hops), **trace}
        self.was_sent = False

    def warn(self, param: str, message: str) -> None:
        """Tell the caller; words of the provider in it may have the key."""
        self._tell(param, shown(message, self.key))

    async def send(self, outgoing: Outgoing, accept: str = "application/json") -> UpstreamReply | StoredReply:
        """The reply to a request, of status 200. Raises AttemptFailed, or Deferred where it comes later."""
        if self.deferral is not None and (found := later_reply(self.deferral, self.target, outgoing)):
            if found.status == 200:
                return found
            raise AttemptFailed(without_secret(self.dialect.failure(found.status, found.content), self.key))
        headers = {
            "content-type": "application/json",
            "accept": accept,
            **self._passed_on,
            **self.dialect.headers,
            **key_headers(self.target.row, self.key),
        }
        self.was_sent = True
        reply = await self._upstream.send(outgoing.path, outgoing.body, headers, self._deadline_s)
        if reply.status == 200:
            return reply
        failure = without_secret(self.dialect.failure(reply.status, await reply.body()), self.key)
        wait_s = retry_after_s(reply.headers)
        raise AttemptFailed(
            failure if wait_s is None else msgspec.structs.replace(failure, retry_after_s=wait_s)
        )


class RemoteAttempt:
    """Read `batches` to its end, or close it; then `usage` and `first_content_s` say what it came to.

    `check` is called with the text of each whole answer before any of it is given out.
    """

    def __init__(
        self, request: GenerationRequest, sending: Sending, check: Callable[[str], None] | None = None
    ) -> None:
        self._request, self._sending, self._check = request, sending, check
        self._target, self._dialect, self._warn = sending.target, sending.dialect, sending.warn
        self.usage = ReportedUsage()
        self.fingerprint: str | None = None
        self.tier: str = sending.target.tier
        self.first_content_s: float | None = None
        self._body = b""
        self._reply: UpstreamReply | StoredReply | None = None
        self._answer: Answer | None = None
        self._is_counted = False
        self._start_s = time.monotonic()

    @property
    def was_sent(self) -> bool:
        """Whether anything may have reached the target."""
        return self._sending.was_sent

    async def batches(self) -> AsyncGenerator[Sequence[InferenceEvent]]:
        """The events of the answer; the first batch has the first content, the last one ends all choices.

        Raises AttemptFailed. Nothing of an answer that has to be checked comes before it is whole.
        """
        use = self._request.tools if isinstance(self._request, ChatRequest) else None
        self._answer = answer = Answer(choices_of(self._request), use, self._warn)
        reader: UpstreamReader | None = None
        reply: UpstreamReply | StoredReply | None = None
        try:
            self._reply = reply = await self._sent()
            reader = self._dialect.reader(self._request, self._target, answer, self._warn)
            held: list[OutputDelta] = []
            count = 0
            async with aclosing(_until_finished(reply, answer)) as pieces:
                async for events in pieces:
                    for event in events:
                        reader.read(event)
                        if reader.is_done:
                            break
                    deltas = answer.take()
                    if answer.has_content and self.first_content_s is None:
                        self.first_content_s = time.monotonic() - self._start_s
                    if self._check is not None or not answer.has_content:
                        held += deltas
                        count += sum(len(delta.parts) for delta in deltas)
                        if count > MAX_PIECES:
                            raise MalformedAnswer(f"sent its answer in more than {MAX_PIECES:,} pieces")
                    elif deltas:
                        yield [*held, *deltas] if held else deltas
                        held = []
                    if reader.is_done:
                        break
            last = [*held, *self._ended(answer, reader, held)]
            reply, finished = None, reply
            finished.finish()
            yield last
        except (MalformedAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            is_of_request = isinstance(error, UnusableAnswer)
            raise self._failed("malformed", _words(error), is_of_request=is_of_request) from error
        except AttemptFailed as error:
            raise self._shown(error.failure) from error
        finally:
            if reader is not None:
                self._note(reader, answer)
            if reply is not None:
                await reply.close()

    def cut(self) -> list[InferenceEvent]:
        """The last events of an answer that was closed before its end: what each prompt comes to."""
        assert self._answer is not None
        return self._prompts_finished(self._usage(self._answer)[0])

    @property
    def plausible(self) -> TokenCounts | None:
        """The most that its usage can be, by what was sent and received; None before there is a reply."""
        if self._reply is None:
            return None
        return plausible(self._request, self._target, self._body, self._reply.received)

    def _note(self, reader: UpstreamReader, answer: Answer) -> None:
        """Keep what the reader knows. The reply within a batch may say that it was processed as usual."""
        key, usage = self._sending.key, without_key(reader.usage, self._sending.key)
        tokens = usage.tokens
        is_short = tokens is not None and answer.has_content and not usage_of(tokens).completion_tokens
        self._is_counted = answer.is_finished and tokens is not None and not is_short
        self.usage = usage if answer.is_finished and not is_short else so_far(usage)
        self.fingerprint = None if reader.fingerprint is None else shown(reader.fingerprint, key)
        if isinstance(self._reply, StoredReply):
            self.tier = BATCH
        elif reader.tier:
            self.tier = shown(reader.tier, key)

    async def _sent(self) -> UpstreamReply | StoredReply:
        outgoing = self._dialect.outgoing(self._request, self._target, self._warn)
        self._body = outgoing.body
        return await self._sending.send(outgoing, "text/event-stream")

    def _ended(
        self, answer: Answer, reader: UpstreamReader, held: Sequence[OutputDelta]
    ) -> list[InferenceEvent]:
        """The last events. Raises AttemptFailed where the answer is not whole, MalformedAnswer where it does
        not match."""
        if not answer.is_finished:
            raise self._failed("truncated", "ended its stream in the middle of the answer")
        self._note(reader, answer)
        usage, reasoning = self._usage(answer)
        ended = answer.ended(reasoning)
        if self._check is not None:
            for one in ended:
                parts = [part for delta in held if delta.choice == one.choice for part in delta.parts]
                is_call = any(isinstance(part, CallStart) for part in parts)
                if one.reason == "stop" and not is_call:
                    self._check("".join(part.text for part in parts if isinstance(part, Text)))
        return [*ended, *self._prompts_finished(usage)]

    def _prompts_finished(self, usage: Usage) -> list[InferenceEvent]:
        first_s = self.first_content_s
        total_s = time.monotonic() - self._start_s
        timing = Timing(0.0, total_s if first_s is None else first_s, total_s)
        prompts = len(self._request.prompts) if isinstance(self._request, CompletionRequest) else 1
        seed = self._request.sampling.get("seed")
        nothing = Usage(0, 0, 0)
        return [PromptFinished(at, usage if at == 0 else nothing, timing, seed) for at in range(prompts)]

    def _usage(self, answer: Answer) -> tuple[Usage, int]:
        """Counts for the reply, and those of reasoning; estimates where the provider does not report all."""
        tokens = self.usage.tokens
        if tokens is not None and self._is_counted:
            return usage_of(tokens), tokens.reasoning
        self._warn("usage", "the target reports no token counts that can be right: these are estimates")
        reasoning = estimated(answer.reasoning_characters)
        written = reasoning + estimated(answer.text_characters)
        if tokens is None:
            return Usage(prompt_tokens(self._request), written, 0), reasoning
        known = usage_of(tokens)
        written = max(written, known.completion_tokens)
        return Usage(known.prompt_tokens, written, known.cached_tokens), max(reasoning, tokens.reasoning)

    def _failed(self, kind: Kind, message: str, *, is_of_request: bool = False) -> AttemptFailed:
        return self._shown(
            Failure(phase="stream", kind=kind, message=message, billed="yes", is_of_request=is_of_request)
        )

    def _shown(self, failure: Failure) -> AttemptFailed:
        return AttemptFailed(without_secret(failure, self._sending.key))


async def _until_finished(
    reply: UpstreamReply | StoredReply, answer: Answer
) -> AsyncGenerator[Sequence[SseEvent]]:
    """The events of a reply. One that stops or breaks off after its answer has ended has only lost what
    follows it, such as its usage."""
    try:
        async with aclosing(reply.events()) as pieces:
            async for events in pieces:
                yield events
    except AttemptFailed as error:
        if not answer.is_finished or error.failure.kind not in ("timeout", "truncated"):
            raise


def key_headers(row: ProviderRow, key: str | None) -> dict[str, str]:
    """The header with the key."""
    if key is None:
        return {}
    return {row.key_header: key} if row.key_header else {"authorization": f"Bearer {key}"}


def prompt_tokens(request: GenerationRequest | EmbeddingRequest) -> int:
    """An estimate of the tokens of all prompts, rather too many. An image counts as 1,600."""
    if isinstance(request, EmbeddingRequest):
        pairs = [
            text for one in request.inputs if isinstance(one, TextPair) for text in (one.first, one.second)
        ]
        texts = [*(one for one in request.inputs if isinstance(one, str | tuple)), *pairs]
        return sum(map(_prompt_tokens, texts))
    if isinstance(request, CompletionRequest):
        return sum(map(_prompt_tokens, request.prompts)) + estimated(len(request.suffix or ""))
    assert isinstance(request, ChatRequest)
    tools = 0 if request.tools is None else len(msgspec.json.encode(request.tools.offered))
    images = 1600 * sum(len(message.images) for message in request.messages)
    texts = message_texts(request.messages).encode("utf-8", "replace")
    return estimated(len(texts) + tools) + images + 4 * len(request.messages)


def _prompt_tokens(prompt: Prompt) -> int:
    return estimated(len(prompt.encode("utf-8", "replace"))) if isinstance(prompt, str) else len(prompt)


def _words(error: Exception) -> str:
    if isinstance(error, MalformedAnswer):
        return str(error)
    return f"sent an event that is no valid JSON of its API: {error!s:.100}"
