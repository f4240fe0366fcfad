"""OpenAI's Responses API, without anything kept at the provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from headrace.chat.messages import Image, Message, parts_of
from headrace.chat.tools import ToolUse
from headrace.grammar.constraint import Constraint
from headrace.inference.attempts import TokenCounts
from headrace.inference.events import TokenText
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.providers.answer import Answer
from headrace.providers.call_memory import CALLS, MAX_ENTRY_BYTES
from headrace.providers.dialect import Outgoing, Warn
from headrace.providers.dialects.errors import raise_error, reply_failure
from headrace.providers.dialects.openai_body import is_guaranteed
from headrace.providers.failure import Failure
from headrace.providers.schemas import is_strict, schema_of
from headrace.providers.sse import SseEvent
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage, count, read_object


class _Item(Struct):
    type: str = ""
    id: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Logprob(Struct):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None
    top_logprobs: list[_Logprob] = []


class _Incomplete(Struct):
    reason: str = ""


class _Response(Struct):
    status: str = ""
    usage: Raw = Raw()
    error: Raw = Raw()
    incomplete_details: _Incomplete | None = None
    service_tier: str | None = None


class _Event(Struct):
    type: str = ""
    item_id: str = ""
    output_index: int = 0
    delta: str | Raw = ""
    item: Raw = Raw()
    response: _Response | None = None
    logprobs: list[_Logprob] | None = None


_event = msgspec.json.Decoder(_Event)
_item = msgspec.json.Decoder(_Item)


class OpenAIResponses:
    """See `Dialect`."""

    headers: Mapping[str, str] = {}

    def outgoing(self, request: GenerationRequest, target: RemoteTarget, warn: Warn) -> Outgoing:
        """See `Dialect.outgoing`."""
        return Outgoing("/responses", msgspec.json.encode(body_of(request, target)))

    def reader(
        self, request: GenerationRequest, target: RemoteTarget, answer: Answer, warn: Warn
    ) -> ResponseReader:
        """See `Dialect.reader`."""
        return ResponseReader(answer, warn, target.provider.name)

    def guarantees(self, wanted: Constraint, row: ProviderRow, *, closes: bool) -> bool:
        """See `Dialect.guarantees`."""
        return is_guaranteed(wanted, row, closes=closes)

    def failure(self, status: int, body: bytes) -> Failure:
        """See `Dialect.failure`."""
        return reply_failure(status, body)


def body_of(request: GenerationRequest, target: RemoteTarget) -> dict[str, Any]:
    """The body that asks a target to answer `request` as a stream."""
    assert isinstance(request, ChatRequest)
    items = [item for message in request.messages for item in _items(message, target.provider.name)]
    include = ["reasoning.encrypted_content"]
    body: dict[str, Any] = {"model": target.model, "stream": True, "store": False, "input": items}
    for name, value in request.sampling.items():
        if name == "logprobs" and value is not None:
            include.append("message.output_text.logprobs")
            body["top_logprobs"] = value
        elif value is not None:
            body[target.row.name_of(name)] = value
    if request.tools is not None:
        body |= _tools(request.tools)
    effort = request.reasoning.effort or ("none" if request.reasoning.enabled is False else None)
    if effort is not None:
        body["reasoning"] = {"effort": effort, "summary": "auto"}
    if request.constraint is not None:
        body["text"] = {"format": _format(request.constraint, closes=request.disable_additional_properties)}
    if request.cache_key is not None:
        body["prompt_cache_key"] = request.cache_key
    return body | target.tier_fields | {"include": include}


def _format(wanted: Constraint, *, closes: bool) -> dict[str, Any]:
    if wanted.kind == "json_object":
        return {"type": "json_object"}
    schema = schema_of(wanted, closes=closes)
    return {"type": "json_schema", "name": "answer", "schema": schema, "strict": is_strict(schema)}


def _tools(use: ToolUse) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
            "strict": tool.strict,
        }
        for tool in use.offered
    ]
    body: dict[str, Any] = {"tools": tools}
    if use.offered != use.callable:
        allowed = [{"type": "function", "name": tool.name} for tool in use.callable]
        body["tool_choice"] = {"type": "allowed_tools", "mode": use.mode, "tools": allowed}
    elif use.mode == "required":
        body["tool_choice"] = "required"
    if not use.parallel:
        body["parallel_tool_calls"] = False
    return body


def _items(message: Message, provider: str) -> list[dict[str, Any]]:
    if message.role == "tool":
        call_id = message.tool_call_id or ""
        return [{"type": "function_call_output", "call_id": call_id, "output": message.content or ""}]
    items: list[dict[str, Any]] = []
    first = message.tool_calls[0].id if message.tool_calls else ""
    if first and (kept := CALLS.find(provider, first)) is not None:
        items += msgspec.json.decode(kept)
    is_own = message.role == "assistant"
    if parts := [_part(part, is_own=is_own) for part in parts_of(message)]:
        items.append({"type": "message", "role": message.role, "content": parts})
    for call in message.tool_calls:
        items.append(
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        )
    return items


def _part(part: str | Image, *, is_own: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "output_text" if is_own else "input_text", "text": part}
    return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}


class ResponseReader:
    """See `UpstreamReader`."""

    def __init__(self, answer: Answer, warn: Warn, provider: str) -> None:
        self._answer, self._warn, self._provider = answer, warn, provider
        self._reasoning: list[Raw] = []
        self._reasoning_bytes = 0
        self._calls: list[str] = []
        self.usage = ReportedUsage()
        self.fingerprint: str | None = None
        self.tier: str | None = None
        self.is_done = False

    def read(self, event: SseEvent) -> None:
        """See `UpstreamReader.read`."""
        found = _event.decode(event.data)
        kind = found.type or event.name
        delta = found.delta if isinstance(found.delta, str) else ""
        match kind:
            case "response.output_text.delta":
                if found.logprobs:
                    self._answer.logprobs(0, [_token_text(one) for one in found.logprobs])
                if delta:
                    self._answer.text(0, delta)
            case "response.refusal.delta":
                self._warn("refusal", "the target refused: its text is the answer")
                if delta:
                    self._answer.text(0, delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                if delta:
                    self._answer.reasoning(0, delta)
            case "response.function_call_arguments.delta":
                if delta:
                    self._answer.arguments(0, found.output_index, delta)
            case "response.output_item.added":
                self._begin(found)
            case "response.output_item.done":
                self._end(found)
            case "response.completed" | "response.incomplete" if found.response is not None:
                self._finish(found.response)
            case "response.failed" if found.response is not None:
                raise_error(bytes(found.response.error) or b"{}")
            case "error":
                raise_error(event.data)
            case _:
                pass  # events that repeat what deltas have said

    def _begin(self, event: _Event) -> None:
        item = _item.decode(event.item)
        if item.type == "function_call":
            self._answer.call(0, event.output_index, item.call_id, item.name)
            self._calls.append(item.call_id)
            if item.arguments:
                self._answer.arguments(0, event.output_index, item.arguments)

    def _end(self, event: _Event) -> None:
        item = _item.decode(event.item)
        if item.type == "function_call":
            self._answer.end_call(0)
        elif item.type == "reasoning":
            self._reasoning_bytes += len(bytes(event.item))
            if self._reasoning_bytes <= MAX_ENTRY_BYTES:
                self._reasoning.append(event.item.copy())

    def _finish(self, response: _Response) -> None:
        self.tier = None if response.service_tier is None else response.service_tier[:40]
        if bytes(response.usage) not in (b"", b"null"):
            self.usage = responses_usage(bytes(response.usage))
        details = response.incomplete_details
        reason = "stop"
        if details is not None:
            reason = "content_filter" if details.reason == "content_filter" else "length"
        self._answer.finish(0, reason)
        if self._reasoning and self._calls and self._reasoning_bytes <= MAX_ENTRY_BYTES:
            CALLS.keep(self._provider, self._calls[0], msgspec.json.encode(self._reasoning))
        self.is_done = True


def responses_usage(raw: bytes) -> ReportedUsage:
    """The `usage` of a response: input includes what was cached, output includes reasoning."""
    fields = read_object(raw)
    if fields is None:
        return ReportedUsage(raw=raw)
    try:
        read, cached = (
            count(fields, "input_tokens"),
            count(fields, "input_tokens_details", "cached_tokens"),
        )
        written = count(fields, "output_tokens")
        reasoning = count(fields, "output_tokens_details", "reasoning_tokens")
        if cached > read or reasoning > written:
            raise ValueError("a part is larger than the whole")
    except ValueError:
        return ReportedUsage(raw=raw)
    tokens = TokenCounts(
        input=read - cached, cache_read=cached, output=written - reasoning, reasoning=reasoning
    )
    return ReportedUsage(tokens if tokens != TokenCounts() else None, raw)


def _token_text(one: _Logprob) -> TokenText:
    data = one.token.encode() if one.bytes is None else bytes(value & 255 for value in one.bytes)
    return TokenText(-1, data, one.logprob, 0, tuple(_token_text(other) for other in one.top_logprobs))
