"""Personal data in requests: found before anything leaves this machine, replaced, and put back in answers.

Every text of a request is looked at, whatever field it is in, in all ways in which a guard reads a text.
What cannot be read (images, token ids) counts as personal. Only texts of the conversation are replaced; what
is replaced is looked at again, and where anything is left the request stays on this machine. So it does where
the search fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import fields, replace

from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import AnswerEvent, Arguments, Reasoning, Text
from headrace.chat.tools import Tool, ToolUse
from headrace.inference.call_context import CallContext
from headrace.inference.events import InferenceEvent, OutputDelta, OutputFinished, PromptScored
from headrace.inference.handler import Batch
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest
from headrace.tasks.guards.calls import redacted_arguments
from headrace.tasks.guards.readings import readings
from headrace.tasks.pii.analyzer import Analyzer
from headrace.tasks.pii.model_entities import model_findings
from headrace.tasks.pii.recognizer import RecognizerResult
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.pii.same_values import everywhere
from headrace.tasks.pii.streaming import StreamingRestorer

LOG = logging.getLogger("headrace.gateway")
UNREAD, FAILED = "unreadable", "undetected"
_OURS = frozenset({"id", "model", "keep_alive_s", "priority", "deadline_s", "slo", "route", "guards"})
"""Fields of a request that are not sent."""


class Private(Struct, frozen=True):
    """What was found in a request. `redacted` is what may leave: the request without personal data; None
    where it may not. `vault` has what placeholders stand for."""

    labels: tuple[str, ...]
    redacted: GenerationRequest | None = None
    vault: Mapping[str, str] = {}


class PrivacyCheck:
    """Looks for personal data. `runner` runs models that find names; None: there are none."""

    def __init__(self, runner: ModelRunner | None) -> None:
        self._runner = runner

    async def check(
        self, request: GenerationRequest, detector: str | None, call: CallContext, *, redacts: bool
    ) -> Private:
        """What is personal in a request, and with `redacts` the request without it. Never raises but for
        cancellation: what cannot be searched is personal."""
        try:
            return await self._check(request, detector, call, redacts=redacts)
        except Exception:
            LOG.exception("a request could not be searched for personal data: it stays on this machine")
            call.warn("route", "the search for personal data failed: the request stays on this machine")
            return Private((FAILED,))

    async def _check(
        self, request: GenerationRequest, detector: str | None, call: CallContext, *, redacts: bool
    ) -> Private:
        if _is_unreadable(request):
            return Private((UNREAD,))
        texts = _searched(request)
        found = await asyncio.to_thread(_labels, texts)
        models = dict[str, list[RecognizerResult]]()
        if detector is not None:
            models = await self._by_model(texts, detector, call)
            found |= {one.label for several in models.values() for one in several}
        if not found or not redacts:
            return Private(tuple(sorted(found)), None if found else request)
        redactor = Redactor(Analyzer())
        models = await asyncio.to_thread(everywhere, list(_said(request)), models)
        shown = await asyncio.to_thread(_redacted, request, redactor, models)
        still = _searched(shown)
        left = await asyncio.to_thread(_labels, still) or any(text in models for text in still)
        return Private(tuple(sorted(found)), None if left else shown, redactor.vault.values)

    async def _by_model(
        self, texts: list[str], detector: str, call: CallContext
    ) -> dict[str, list[RecognizerResult]]:
        assert self._runner is not None
        own = call.nested("privacy")
        read = [one for one in texts if one.strip()]
        found = await model_findings(self._runner, detector, read, own, None, 0.5) if read else []
        return {text: several for text, several in zip(read, found, strict=True) if several}


def _searched(request: GenerationRequest) -> list[str]:
    """Every text of a request once, and all of them together: what stands before a number may say what it
    is, in another message, too."""
    texts = list(dict.fromkeys(_texts(request)))
    return [*texts, "\n".join(texts)]


def _said(request: GenerationRequest) -> Iterator[str]:
    """Texts that are said, not given: instructions and tools are those of a program, and stay the same
    whatever somebody says to it."""
    if isinstance(request, CompletionRequest):
        yield from (one for one in (*request.prompts, request.suffix) if isinstance(one, str))
    for one in request.messages if isinstance(request, ChatRequest) else ():
        if one.role not in ("system", "developer"):
            yield from (text for text in (one.content, one.reasoning) if text)
            yield from _arguments(one)


def _texts(value: object, *, numbers: bool = True) -> Iterator[str]:
    """Every text in a request that may be sent, keys of objects too, and `numbers` as they are written."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Struct):
        is_request = isinstance(value, GenerationRequest)
        for field in fields(value):
            if not (is_request and field.name in _OURS):
                yield from _texts(getattr(value, field.name), numbers=numbers and field.name != "sampling")
        if isinstance(value, Tool | Message):
            yield from _arguments(value)
    elif isinstance(value, Mapping):
        for key, one in cast("Mapping[object, object]", value).items():
            yield from _texts(key, numbers=numbers)
            yield from _texts(one, numbers=numbers)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in cast("list[object]", value):
            yield from _texts(one, numbers=numbers)
    elif numbers and isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _arguments(value: Tool | Message) -> Iterator[str]:
    """Texts in arguments of calls, without JSON's escapes."""
    for call in value.tool_calls if isinstance(value, Message) else ():
        try:
            yield from _texts(json.loads(call.arguments))
        except (ValueError, RecursionError):
            continue  # it is read as it stands


def _labels(texts: list[str]) -> set[str]:
    analyzer = Analyzer()
    return {
        match.label
        for text in texts
        if not (text.isascii() and text.isdecimal() and len(text) < 6)
        for one in readings(text)
        for match in analyzer.find(one)
    }


def _is_unreadable(request: GenerationRequest) -> bool:
    if isinstance(request, CompletionRequest):
        return not all(isinstance(prompt, str) for prompt in request.prompts)
    assert isinstance(request, ChatRequest)
    return bool(request.context) or any(message.images for message in request.messages)


def _redacted(
    request: GenerationRequest, redactor: Redactor, models: Mapping[str, list[RecognizerResult]]
) -> GenerationRequest:
    def text(value: Any) -> Any:
        return redactor.redact(value, models.get(value, ())).text if value else value

    if isinstance(request, CompletionRequest):
        prompts = tuple(text(prompt) for prompt in request.prompts)
        return _without_logprobs(replace(request, prompts=prompts, suffix=text(request.suffix)))
    assert isinstance(request, ChatRequest)
    messages = tuple(
        replace(
            one,
            content=text(one.content),
            reasoning=text(one.reasoning),
            tool_calls=tuple(
                replace(call, arguments=redacted_arguments(call.arguments, text)) for call in one.tool_calls
            ),
        )
        for one in request.messages
    )
    tools = request.tools
    if tools is not None:
        known = {tool.name: _tool(tool, text) for tool in tools.offered}
        tools = ToolUse(
            tuple(known.values()),
            tuple(known[tool.name] for tool in tools.callable),
            tools.mode,
            tools.parallel,
        )
    return _without_logprobs(
        replace(request, messages=messages, tools=tools, prediction=text(request.prediction))
    )


def _tool(tool: Tool, text: Any) -> Tool:
    def described(value: object) -> object:
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, object]", value)
            return {
                key: text(one) if key == "description" and isinstance(one, str) else described(one)
                for key, one in entries.items()
            }
        if isinstance(value, list):
            return [described(one) for one in cast("list[object]", value)]
        return value

    parameters = cast("Mapping[str, Any]", described(tool.parameters))
    return replace(tool, description=text(tool.description), parameters=parameters)


def _without_logprobs(request: GenerationRequest) -> GenerationRequest:
    """Tokens would show placeholders, which are no tokens of the text that is put back. The key of a
    provider's cache is often somebody's name."""
    kept = {name: value for name, value in request.sampling.items() if name != "logprobs"}
    return replace(request, sampling=kept, cache_key=None)


class Restorer:
    """Puts what placeholders stand for back into the events of an answer. A placeholder may be spread over
    events; within JSON it becomes JSON."""

    def __init__(self, private: Private, *, is_json: bool) -> None:
        self._plain = private.vault
        self._json = {
            name: json.dumps(text, ensure_ascii=False)[1:-1] for name, text in private.vault.items()
        }
        self._is_json = is_json
        self._open: dict[int, tuple[type[Any], int, StreamingRestorer]] = {}

    def batch(self, batch: Batch) -> list[InferenceEvent]:
        """What is known of the events so far."""
        found = [self._event(event) for event in batch if not isinstance(event, PromptScored)]
        return [
            event
            for event in found
            if not isinstance(event, OutputDelta) or event.parts or event.tokens or event.logprobs
        ]

    def _event(self, event: InferenceEvent) -> InferenceEvent:
        if not isinstance(event, OutputDelta | OutputFinished):
            return event
        parts: list[AnswerEvent] = []
        for part in event.parts:
            parts += self._part(event.choice, part)
        if isinstance(event, OutputFinished):
            parts += self._closed(event.choice)
        return replace(event, parts=parts)

    def _part(self, choice: int, part: AnswerEvent) -> list[AnswerEvent]:
        index = part.index if isinstance(part, Arguments) else 0
        opened = self._open.get(choice)
        before: list[AnswerEvent] = []
        if opened is not None and opened[:2] != (type(part), index):
            before = self._closed(choice)
        if not isinstance(part, Text | Reasoning | Arguments):
            return [*before, part]
        if choice not in self._open:
            is_json = isinstance(part, Arguments) or (self._is_json and isinstance(part, Text))
            vault = self._json if is_json else self._plain
            self._open[choice] = (type(part), index, StreamingRestorer(vault))
        text = self._open[choice][2].feed(part.text)
        signed = isinstance(part, Reasoning) and part.signature
        return [*before, replace(part, text=text)] if text or signed else before

    def _closed(self, choice: int) -> list[AnswerEvent]:
        opened = self._open.pop(choice, None)
        if opened is None or not (text := opened[2].finish()):
            return []
        kind, index, _ = opened
        return [Arguments(index, text) if kind is Arguments else kind(text)]
