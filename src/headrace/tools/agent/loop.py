"""A loop over a model and tools, as a handler: generate, call, verify, repeat, within budgets.

Every step is kept before the next one begins. A run that was interrupted goes on where it was: answers and
results that are there are taken again, and a call that was begun is made again only where that does no harm,
or a person says so.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from headrace.chat.messages import Message, ToolCall
from headrace.chat.tool_formats.events import Arguments as ArgumentsPart
from headrace.chat.tool_formats.events import CallEnd, CallStart, Reasoning, Text
from headrace.chat.tools import Tool, ToolUse
from headrace.engine.request import Timing
from headrace.errors import DeadlineExceeded, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
)
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.requests import ChatRequest, InferenceRequest
from headrace.inference.result import ResultCollector
from headrace.struct_types import thread_safe
from headrace.tools.agent.budget import BudgetUse
from headrace.tools.agent.plan import AgentPlan, StopReason
from headrace.tools.agent.steps import ModelStep, NoJournal, StepJournal
from headrace.tools.agent.tool_calls import ToolCalls
from headrace.tools.agent.verify import Verifier
from headrace.tools.tool import ServedTools, ToolSpec

MODEL_CALL = "model call"
"""The name of the stage that an answer of the model is."""
_NO_TIMING = Timing(0.0, 0.0, 0.0)


class AgentHandler:
    """Answers chat requests with several steps of `inner`, and calls of tools between them."""

    def __init__(
        self, inner: Handler, tools: ServedTools, plan: AgentPlan, journal: StepJournal | None = None
    ) -> None:
        self._inner, self._tools, self._plan = inner, tools, plan
        self._journal = journal or NoJournal()

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        if not isinstance(request, ChatRequest):
            return self._inner.handle(request, call)
        return _Run(self._inner, self._tools, self._plan, self._journal, request, call).events()


class _Run:
    """`_kept` are the steps that are in the journal, None for those that were begun and not done."""

    def __init__(
        self,
        inner: Handler,
        tools: ServedTools,
        plan: AgentPlan,
        journal: StepJournal,
        request: ChatRequest,
        call: CallContext,
    ) -> None:
        self._inner, self._plan, self._journal, self._call = inner, plan, journal, call
        self._kept: dict[str, bytes | None] = {}
        offered = _with_tools(request.tools, plan.tools)
        self._request = replace(request, tools=offered)
        self._callable = {one.name for one in offered.callable} if offered is not None else set[str]()
        self._messages = list(request.messages)
        self._used = BudgetUse(plan.budget, request.route and request.route.max_usd)
        self._calls = ToolCalls(tools, plan, journal, self._kept, self._used, call)
        self._verifier = Verifier(inner, tools)
        self._step: ModelStep | None = None
        self._is_announced = False
        self._repairs = 0
        self._stop: StopReason | None = None

    async def events(self) -> AsyncGenerator[Batch]:
        """The events of the whole run: `Prepared` and `Started` are those of its first step."""
        self._kept |= await self._journal.steps(self._plan.run_id)
        pending = [ToolCall(one.id, one.name, one.arguments) for one in self._plan.pending]
        waiting: list[Batch] = []
        if pending:  # the reply begins with the first step of the model
            waiting = [batch async for batch in self._called("pending", pending)]
        number = 0
        while self._stop is None:
            self._stop = self._used.exceeded(number)
            if self._stop is not None:
                break
            async for batch in self._answered(number):
                yield batch
                if waiting and self._is_announced and isinstance(batch[0], Started):
                    for one in waiting:
                        yield one
                    waiting = []
            if self._step is None:
                break
            async for batch in self._continued(number, self._step):
                yield batch
            number += 1
        if not self._is_announced:
            raise InvalidRequest(f"the budget of this run allows no step ({self._stop})", param="budget")
        yield [*self._end()]

    # -- an answer of the model ------------------------------------------------------------------------

    async def _answered(self, number: int) -> AsyncGenerator[Batch]:
        """One answer of the model, kept or made; `_step` is it, None where there is no budget for it."""
        kept = self._kept.get(str(number))
        self._step = None
        if kept is not None:
            self._step = msgspec.json.decode(kept, type=thread_safe(ModelStep))
            for batch in self._again(self._step):
                yield batch
        else:
            with self._call.stage(MODEL_CALL, step=number) as note:
                async with aclosing(self._made(number)) as made:
                    async for batch in made:
                        yield batch
                if (step := self._step) is not None:
                    note.detail |= {"model": step.model, "prompt_tokens": step.prompt_tokens}
                    note.detail |= {"output_tokens": step.completion_tokens, "calls": len(step.calls)}
                    note.output = step.content
        if self._step is not None:
            self._used.add(self._step)

    def _again(self, step: ModelStep) -> list[Batch]:
        found: list[Batch] = []
        if not self._is_announced:
            self._is_announced = True
            prompt = PreparedPrompt((), "", step.prompt_tokens)
            found = [[Prepared(step.model, (prompt,))], [Started()]]
        parts: list[Text | Reasoning | CallStart | ArgumentsPart | CallEnd] = []
        if step.reasoning:
            parts.append(Reasoning(step.reasoning))
        if step.content and not self._plan.checks:
            parts.append(Text(step.content))
        return [*found, [OutputDelta(0, tuple(parts))]] if parts else found

    async def _made(self, number: int) -> AsyncGenerator[Batch]:
        began_s, before = time.monotonic(), self._call.taken_nano_usd
        opened = await self._opened(number)
        if opened is None:
            return
        prepared, batches = opened
        collector = ResultCollector(1, 1)
        try:
            await batches.__anext__()  # Started
            if not self._is_announced:
                self._is_announced = True
                yield [prepared]
                yield [Started()]
            async for batch in _until_late(batches, self._plan.budget.seconds is not None):
                collector.add(batch)
                if parts := self._shown(batch):
                    yield [OutputDelta(0, parts)]
        finally:
            await batches.aclose()
        if collector.prompts[0].finished is None:  # the time was over
            self._stop = "seconds"
            return
        cost = self._call.taken_nano_usd - before
        step = _model_step(prepared, collector, time.monotonic() - began_s, cost)
        await self._journal.finish(self._plan.run_id, str(number), msgspec.json.encode(step))
        self._step = step

    def _shown(self, batch: Batch) -> tuple[Reasoning | Text, ...]:
        """What of it the client sees at once: not a text that is to be checked."""
        return tuple(
            part
            for event in batch
            if isinstance(event, OutputDelta | OutputFinished)
            for part in event.parts
            if isinstance(part, Reasoning) or (isinstance(part, Text) and not self._plan.checks)
        )

    async def _opened(self, number: int) -> tuple[Prepared, EventBatches] | None:
        """The stream of the next answer, with as many tokens as are left; None where there are none."""
        request = self._used.bounded(replace(self._request, messages=tuple(self._messages)))
        if number:  # the one before may not have ended everywhere
            request = replace(request, id=f"{request.id}.{number}")
        batches, prepared = await self._begun(request)
        most = self._plan.budget.tokens
        if most is None:
            return prepared, batches
        prompt = sum(len(one.tokens) or one.estimated_tokens for one in prepared.prompts)
        left = most - self._used.tokens - prompt
        if prepared.params is None or (prepared.params.max_tokens or left + 1) > left:
            await batches.aclose()  # nothing was computed
            if left < 1:
                self._stop = "tokens"
                if not self._is_announced:
                    raise InvalidRequest(
                        f"the prompt has {prompt:,} tokens, and the budget is {most:,}: raise it, or shorten "
                        "the prompt",
                        param="budget",
                    )
                return None
            sampling = {**request.sampling, "max_tokens": left}
            batches, prepared = await self._begun(replace(request, sampling=sampling))
        return prepared, batches

    async def _begun(self, request: ChatRequest) -> tuple[EventBatches, Prepared]:
        batches = self._inner.handle(request, self._call)
        try:
            [prepared] = await batches.__anext__()
        except BaseException:
            await batches.aclose()
            raise
        assert isinstance(prepared, Prepared)
        return batches, prepared

    # -- what follows it -------------------------------------------------------------------------------

    async def _continued(self, number: int, step: ModelStep) -> AsyncGenerator[Batch]:
        """What follows an answer: calls, or its verification."""
        calls = [
            ToolCall(f"call_{number}_{index}_{self._plan.run_id[-24:]}", name, arguments)
            for index, (name, arguments) in enumerate(step.calls)
        ]
        gone = [one.name for one in calls if one.name not in self._callable]
        if gone and str(number) in self._kept:
            raise InvalidRequest(
                f"step {number} of this run calls {gone[0]!r:.80}, which is none of its tools now: give that "
                "tool again, or begin a new run",
                param="tools",
            )
        self._messages.append(Message("assistant", step.content or None, tool_calls=tuple(calls)))
        if step.text_reason != "stop" or not calls:
            async for batch in self._finished(number, step):
                yield batch
            return
        async for batch in self._called(str(number), [one for one in calls if self._calls.owns(one)]):
            yield batch
        theirs = [one for one in calls if not self._calls.owns(one)]
        if theirs and self._stop is None:
            yield [OutputDelta(0, tuple(_parts(theirs)))]
            self._stop = "tool_calls"

    async def _called(self, place: str, calls: Sequence[ToolCall]) -> AsyncGenerator[Batch]:
        async for batch in self._calls.run(place, calls, self._messages):
            yield batch
        self._stop = self._calls.stop

    async def _finished(self, number: int, step: ModelStep) -> AsyncGenerator[Batch]:
        problem = None
        if step.text_reason == "stop" and self._plan.checks:
            problem = await self._problem(number, step)
        if problem is None:
            self._stop = "stop" if step.text_reason == "stop" else "length"
        elif self._repairs >= self._plan.max_repairs:
            self._stop = "verification"
        else:
            self._repairs += 1
            self._messages.append(
                Message("user", f"This answer was not accepted: {problem}\nAnswer again, correctly.")
            )
            return
        if step.content and self._plan.checks:
            yield [OutputDelta(0, (Text(step.content),))]

    async def _problem(self, number: int, step: ModelStep) -> str | None:
        """What the checks say of an answer, kept or made."""
        name = f"{number}.check"
        kept = self._kept.get(name)
        if kept is not None:
            return msgspec.json.decode(kept, type=str | None)
        with self._call.stage("verify", step=number) as note:
            problem = await self._verifier.problem(self._plan.checks, step.content, self._request, self._call)
            note.output = problem or ""
        await self._journal.finish(self._plan.run_id, name, msgspec.json.encode(problem))
        return problem

    def _end(self) -> list[OutputFinished | PromptFinished]:
        stop = self._stop or "stop"
        is_whole = stop in ("stop", "tool_calls", "approval")
        seed = None if self._step is None else self._step.seed
        finished = OutputFinished(0, (), stop, "stop" if is_whole else "length")
        return [finished, PromptFinished(0, self._used.usage(), _NO_TIMING, seed)]


def _model_step(prepared: Prepared, collector: ResultCollector, seconds: float, nano_usd: int) -> ModelStep:
    """A whole answer as it is kept."""
    result = collector.prompts[0]
    choice, usage = result.choices[0], result.ended.usage
    return ModelStep(
        model=prepared.model,
        content=choice.output.content,
        reasoning=choice.output.reasoning,
        calls=tuple((one.name, one.arguments) for one in choice.output.calls),
        reason=choice.ended.reason,
        text_reason=choice.ended.text_reason,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        seed=result.ended.seed,
        seconds=seconds,
        nano_usd=nano_usd,
    )


async def _until_late(batches: EventBatches, has_deadline: bool) -> AsyncGenerator[Batch]:
    """The batches until their end, or that of the time which the run has."""
    try:
        async for batch in batches:
            yield batch
    except DeadlineExceeded:
        if not has_deadline:
            raise


def _with_tools(given: ToolUse | None, specs: Sequence[ToolSpec]) -> ToolUse | None:
    """The tools of the client and of the server together: what may be called is one grammar."""
    ours = tuple(Tool(spec.name, spec.description, spec.parameters) for spec in specs)
    if not ours:
        return given
    if given is None:
        return ToolUse(ours, ours)
    return replace(given, offered=(*given.offered, *ours), callable=(*given.callable, *ours))


def _parts(calls: Sequence[ToolCall]) -> list[CallStart | ArgumentsPart | CallEnd]:
    return [
        part
        for index, one in enumerate(calls)
        for part in (CallStart(index, one.id, one.name), ArgumentsPart(index, one.arguments), CallEnd(index))
    ]
