"""A handler that checks what goes into the handler inside it, and what comes out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    ChoicesRanked,
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    Prepared,
    PromptScored,
)
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import GenerationRequest, InferenceRequest
from headrace.tasks.guards.check import GuardChecks
from headrace.tasks.guards.input import CheckedInput, tell
from headrace.tasks.guards.output import GuardedChoice, OutputGuards
from headrace.tasks.guards.settings import GuardSettings, chosen


class GuardHandler:
    """Guards of a server or an LLM around `inner`; `runner` runs their classifiers, without guards."""

    def __init__(self, inner: Handler, guards: Mapping[str, GuardSettings], runner: ModelRunner) -> None:
        self.guards = guards
        self.inner, self._checks = inner, GuardChecks(runner)

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
        if any(one.reads("input") for one in guards.values()):
            request = await CheckedInput(self._checks, guards, call).read(request)
        has_output = any(one.reads("output") for one in guards.values())
        if has_output:
            request = _without_logprobs(request, call)
        async with aclosing(self.inner.handle(request, call)) as batches:
            if not has_output:
                async for batch in batches:
                    yield batch
                return
            output = GuardedOutput(OutputGuards(guards, self._checks, call), request.id, call)
            async for batch in batches:
                guarded = [await output.read(event) for event in batch]
                events = [event for several in guarded for event in several]
                if events:
                    yield events


class GuardedOutput:
    """The events of one answer. Where all choices of a prompt are blocked, nothing more of it is computed."""

    def __init__(self, guards: OutputGuards, request_id: str, call: CallContext) -> None:
        self._guards, self._request_id, self._call = guards, request_id, call
        self._choices: dict[int, GuardedChoice] = {}
        self._per_prompt = 1
        self._over: dict[int, set[int]] = {}  # choices by prompt

    async def read(self, event: InferenceEvent) -> Sequence[InferenceEvent]:
        """What is shown of an event."""
        if isinstance(event, Prepared):
            self._per_prompt = event.choices
        if isinstance(event, PromptScored):
            return ()
        if isinstance(event, ChoicesRanked):
            return (self._without_answers(event),)
        if not isinstance(event, OutputDelta | OutputFinished):
            return (event,)
        choice = self._choices.setdefault(event.choice, GuardedChoice(self._guards))
        if choice.is_blocked:  # its end has been sent
            return ()
        parts = await choice.feed(event.parts)
        if isinstance(event, OutputFinished):
            parts += await choice.finish()
        verdicts, choice.verdicts = choice.verdicts, []
        tell(verdicts, self._call)
        if choice.is_blocked or isinstance(event, OutputFinished):
            self._count(event.choice, is_running=isinstance(event, OutputDelta))
        if choice.is_blocked:
            stop = replace(event, parts=parts) if isinstance(event, OutputFinished) else None
            stop = stop or OutputFinished(event.choice, parts, "content_filter", "stop")
            return (replace(stop, reason="content_filter", text_reason="stop", stop=None),)
        if isinstance(event, OutputFinished):
            return (replace(event, parts=parts),)
        return (OutputDelta(event.choice, parts),)

    def _without_answers(self, event: ChoicesRanked) -> ChoicesRanked:
        """Of a vote only the order: its answers are text of choices that is not checked."""
        selection = event.selection
        if selection.answer is None and not selection.votes:
            return event
        self._call.warn("vote", "the answers voted for are left out: a guard reads the output")
        return replace(event, selection=replace(selection, answer=None, votes=()))

    def _count(self, choice: int, *, is_running: bool) -> None:
        """Stop what is computed of a prompt when the last of its choices is blocked."""
        prompt = choice // self._per_prompt
        over = self._over.setdefault(prompt, set())
        over.add(choice)
        if is_running and len(over) == self._per_prompt and self._request_id in self._call.stops:
            self._call.stops[self._request_id](prompt)


def _without_logprobs(request: GenerationRequest, call: CallContext) -> GenerationRequest:
    """Tokens and their probabilities would show text before it is checked."""
    given = {name: request.sampling.get(name) for name in ("logprobs", "prompt_logprobs")}
    asked = [name for name, value in given.items() if value is not None and value is not False]  # 0 asks, too
    if not asked:
        return request
    call.warn(asked[0], f"{' and '.join(asked)} are left out: a guard reads the output")
    return replace(
        request, sampling={name: value for name, value in request.sampling.items() if name not in asked}
    )
