"""A handler that checks what goes into the handler inside it, and what comes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import GuardVerdict, InferenceEvent, OutputDelta, OutputFinished, PromptScored
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest, InferenceRequest
from headrace.tasks.guards.check import check
from headrace.tasks.guards.output import GuardedChoice
from headrace.tasks.guards.settings import GuardSettings, chosen
from headrace.tasks.task_limits import check_searched

_UNCHECKED = ("system", "developer")
"""Roles of the operator's own messages."""


class ContentBlocked(InvalidRequest):
    """A guard has blocked what was sent."""

    remedy = "Send something else: the guard that the message names does not let this pass."
    code = "content_filter"


class GuardHandler:
    """Guards of a server or an LLM around `inner`; `runner` runs their classifiers, without guards."""

    def __init__(self, inner: Handler, guards: Mapping[str, GuardSettings], runner: ModelRunner) -> None:
        self.guards = guards
        self.inner, self._runner = inner, runner

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`. A guard that blocks what was sent raises ContentBlocked.

        What no guard reads passes here without a generator of its own, which each batch would pay for.
        """
        guards = chosen(self.guards, request.guards) if isinstance(request, GenerationRequest) else {}
        if not guards or not isinstance(request, GenerationRequest):
            return self.inner.handle(request, call)
        return self._guarded_batches(request, guards, call)

    async def _guarded_batches(
        self, request: GenerationRequest, guards: Mapping[str, GuardSettings], call: CallContext
    ) -> AsyncGenerator[Batch]:
        request = await self._checked_input(request, guards, call)
        has_output = any("output" in one.on for one in guards.values())
        if has_output:
            request = _without_logprobs(request, call)
        async with aclosing(self.inner.handle(request, call)) as batches:
            if not has_output:
                async for batch in batches:
                    yield batch
                return
            choices: dict[int, GuardedChoice] = {}
            async for batch in batches:
                guarded = [await self._guarded(event, choices, guards, call) for event in batch]
                events = [event for several in guarded for event in several]
                if events:
                    yield events

    async def _checked_input(
        self, request: GenerationRequest, guards: Mapping[str, GuardSettings], call: CallContext
    ) -> GenerationRequest:
        on_input = [one for one in guards.values() if "input" in one.on]
        if not on_input:
            return request
        if any(one.kind != "classifier" for one in on_input):
            check_searched(_sent(request), _field(request))

        async def checked(text: str | None) -> str | None:
            if not text:
                return text
            new, verdicts = await check(guards, text, "input", self._runner, call)
            for one in verdicts:
                if one.action == "block":
                    raise ContentBlocked(
                        f"the guard {one.guard!r} blocks what was sent: it found {one.label} with the score"
                        f" {one.score:.2f}",
                        param=_field(request),
                    )
            _tell(verdicts, call)
            return new

        if isinstance(request, ChatRequest):
            messages = [
                one if one.role in _UNCHECKED else replace(one, content=await checked(one.content))
                for one in request.messages
            ]
            return replace(request, messages=tuple(messages))
        assert isinstance(request, CompletionRequest)
        prompts: list[str] = []
        for prompt in request.prompts:
            if not isinstance(prompt, str):
                raise InvalidRequest(
                    "guards read text: send the prompt as text, not as token ids", param="prompt"
                )
            prompts.append(await checked(prompt) or "")
        return replace(request, prompts=tuple(prompts), suffix=await checked(request.suffix))

    async def _guarded(
        self,
        event: InferenceEvent,
        choices: dict[int, GuardedChoice],
        guards: Mapping[str, GuardSettings],
        call: CallContext,
    ) -> Sequence[InferenceEvent]:
        if isinstance(event, PromptScored):
            return ()
        if not isinstance(event, OutputDelta | OutputFinished):
            return (event,)
        choice = choices.setdefault(event.choice, GuardedChoice(guards, self._runner, call))
        if choice.is_blocked:  # its end has been sent
            return ()
        parts = await choice.feed(event.parts)
        if isinstance(event, OutputFinished):
            parts += await choice.finish()
        verdicts, choice.verdicts = choice.verdicts, []
        _tell(verdicts, call)
        if choice.is_blocked:
            stop = replace(event, parts=parts) if isinstance(event, OutputFinished) else None
            stop = stop or OutputFinished(event.choice, parts, "content_filter", "stop")
            return (replace(stop, reason="content_filter", text_reason="stop", stop=None),)
        if isinstance(event, OutputFinished):
            return (replace(event, parts=parts),)
        return (OutputDelta(event.choice, parts),)


def _field(request: GenerationRequest) -> str:
    """What errors about the texts of a request name."""
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def _sent(request: GenerationRequest) -> list[str]:
    """The texts that guards read."""
    if isinstance(request, ChatRequest):
        return [one.content or "" for one in request.messages if one.role not in _UNCHECKED]
    assert isinstance(request, CompletionRequest)
    return [*(one for one in request.prompts if isinstance(one, str)), request.suffix or ""]


def _without_logprobs(request: GenerationRequest, call: CallContext) -> GenerationRequest:
    """Tokens and their probabilities would show text before it is checked."""
    asked = [
        name for name in ("logprobs", "prompt_logprobs") if request.sampling.get(name) not in (None, False)
    ]
    if not asked:
        return request
    call.warn(asked[0], f"{' and '.join(asked)} are left out: a guard reads the output")
    return replace(
        request, sampling={name: value for name, value in request.sampling.items() if name not in asked}
    )


def _tell(verdicts: Sequence[GuardVerdict], call: CallContext) -> None:
    done = {"block": "blocked", "redact": "redacted", "flag": "flagged"}
    call.verdicts += verdicts
    for one in verdicts:
        call.warn(
            "guard",
            f"{one.guard} {done[one.action]} the {one.stage}: {one.label} with the score {one.score:.2f}",
        )
