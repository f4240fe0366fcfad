"""What goes in, through the guards of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from headrace.chat.messages import Message, ToolCall
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import GuardVerdict
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest
from headrace.tasks.guards.calls import call_text, redacted_arguments
from headrace.tasks.guards.check import GuardChecks, in_thread_if_long, redactor_of
from headrace.tasks.guards.settings import GuardSettings
from headrace.tasks.task_limits import check_searched

MAX_JUDGED_TEXTS = 2048
"""Texts of a request times guards that ask a model, which reads each in up to three ways."""
_UNCHECKED = ("system", "developer")
"""Roles of the operator's own messages."""


class ContentBlocked(InvalidRequest):
    """A guard has blocked what was sent."""

    remedy = "Send something else: the guard that the message names does not let this pass."
    code = "content_filter"


class CheckedInput:
    """Reads the texts of one request: content, reasoning and calls of messages, or prompts."""

    def __init__(self, checks: GuardChecks, guards: Mapping[str, GuardSettings], call: CallContext) -> None:
        self._checks, self._call, self._param = checks, call, ""
        self._guards = {name: one for name, one in guards.items() if one.reads("input")}
        redacting = {name: one for name, one in self._guards.items() if one.action == "redact"}
        self._redactors = {name: redactor_of(name, one) for name, one in redacting.items()}

    async def read(self, request: GenerationRequest) -> GenerationRequest:
        """The request, redacted where a guard says so. ContentBlocked where one blocks it, InvalidRequest
        where it has no text to read."""
        if any(one.kind in ("pii", "regex", "words") for one in self._guards.values()):
            check_searched(_sent(request), "messages" if isinstance(request, ChatRequest) else "prompt")
        self._check_work(request)
        if isinstance(request, ChatRequest):
            return await self._chat(request)
        assert isinstance(request, CompletionRequest)
        self._param = "prompt"
        prompts: list[str] = []
        for prompt in request.prompts:
            if not isinstance(prompt, str):
                raise InvalidRequest(
                    "guards read text: send the prompt as text, not as token ids", param="prompt"
                )
            prompts.append(await self._text(prompt) or "")
        return replace(request, prompts=tuple(prompts), suffix=await self._text(request.suffix))

    def _check_work(self, request: GenerationRequest) -> None:
        """InvalidRequest where guards would ask their models too often."""
        guards = [name for name, one in self._guards.items() if one.asks_a_model]
        texts = sum(1 for text in _sent(request) if text.strip())
        if texts * len(guards) > MAX_JUDGED_TEXTS:
            raise InvalidRequest(
                f"{texts:,} texts are more than the {MAX_JUDGED_TEXTS // len(guards):,} that guards"
                f" ({', '.join(guards)}) read of one request: send fewer messages, prompts or calls",
                param="messages" if isinstance(request, ChatRequest) else "prompt",
            )

    async def _chat(self, request: ChatRequest) -> ChatRequest:
        if request.context:
            raise InvalidRequest(
                "guards read text: send the conversation as messages, not as token ids in context",
                param="context",
            )
        self._param = "messages"
        messages = [one if one.role in _UNCHECKED else await self._message(one) for one in request.messages]
        self._param = "prediction"
        return replace(request, messages=tuple(messages), prediction=await self._text(request.prediction))

    async def _message(self, message: Message) -> Message:
        return replace(
            message,
            content=await self._text(message.content),
            name=await self._text(message.name),
            reasoning=await self._text(message.reasoning),
            tool_calls=tuple([await self._tool_call(one) for one in message.tool_calls]),
        )

    async def _text(self, text: str | None) -> str | None:
        if not text:
            return text
        new, verdicts = await self._check(text)
        self._judge(verdicts)
        return new

    async def _tool_call(self, call: ToolCall) -> ToolCall:
        text = call_text(call.name, call.arguments)
        _, verdicts = await self._check(text)
        self._judge(verdicts)
        name, arguments = call.name, call.arguments
        for redactor in self._redactors.values():
            name = redactor.redact(name).text
            search = partial(redacted_arguments, arguments, lambda one, r=redactor: r.redact(one).text)
            arguments = await in_thread_if_long(search, len(arguments))
        return replace(call, name=name, arguments=arguments)

    async def _check(self, text: str) -> tuple[str, list[GuardVerdict]]:
        return await self._checks.check(self._guards, text, "input", self._call, redactors=self._redactors)

    def _judge(self, verdicts: Sequence[GuardVerdict]) -> None:
        for one in verdicts:
            if one.action == "block":
                raise ContentBlocked(
                    f"the guard {one.guard!r} blocks what was sent: it found {one.label} with the score"
                    f" {one.score:.2f}",
                    param=self._param,
                )
        tell(verdicts, self._call)


def _sent(request: GenerationRequest) -> list[str]:
    """The texts that guards read."""
    if isinstance(request, ChatRequest):
        read = [one for one in request.messages if one.role not in _UNCHECKED]
        texts = [text or "" for one in read for text in (one.content, one.name, one.reasoning)]
        return [*texts, request.prediction or ""] + [
            call.arguments for one in read for call in one.tool_calls
        ]
    assert isinstance(request, CompletionRequest)
    return [*(one for one in request.prompts if isinstance(one, str)), request.suffix or ""]


def tell(verdicts: Sequence[GuardVerdict], call: CallContext) -> None:
    """Put verdicts into the reply: as they are, and in words into its warnings."""
    done = {"block": "blocked", "redact": "redacted", "flag": "flagged"}
    call.verdicts += verdicts
    for one in verdicts:
        call.warn(
            "guard",
            f"{one.guard} {done[one.action]} the {one.stage}: {one.label} with the score {one.score:.2f}",
        )
