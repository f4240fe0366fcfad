"""A loop over a model and tools, as a handler: generate, call, verify, repeat, within budgets.

Every step is kept before the next one begins. A run that was interrupted goes on where it was: answers and
results that are there are taken again, and a call that was begun is made again only where that does no harm,
or a person says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from headrace.chat.messages import Message, ToolCall
from headrace.chat.tool_formats.events import Arguments as ArgumentsPart
from headrace.chat.tool_formats.events import CallEnd, CallStart, Reasoning, Text
from headrace.chat.tools import Tool, ToolUse
from headrace.engine.request import Timing, Usage
from headrace.errors import DeadlineExceeded, HeadraceError, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    ApprovalWanted,
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
    ToolCalled,
    ToolReturned,
)
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.requests import ChatRequest, InferenceRequest, RouteWishes
from headrace.inference.result import ResultCollector
from headrace.tools.tool import ServedTools, ToolResult, ToolSpec, spotlighted
from headrace.tools.verify import AnswerCheck, Verifier

MAX_SAME = 3
"""Times of a call with the same result, after which a run ends."""
MAX_PARALLEL = 8
MODEL_CALL = "model call"
"""The name of the stage that an answer of the model is."""
Decision = str
"""About a call: approve, deny, or result:TEXT, what a call that was begun has given."""
StopReason = Literal[
    "stop",
    "tool_calls",
    "length",
    "approval",
    "loop",
    "steps",
    "tool_budget",
    "tokens",
    "seconds",
    "verification",
]
_REFUSED = "The user has refused this call."
_NO_TIMING = Timing(0.0, 0.0, 0.0)


class AgentBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run may use. `steps` are answers of the model, `tokens` those of all its prompts and answers. Of
    `usd` each step may cost an equal part at most, so that the sum is a bound."""

    steps: int = 12
    tool_calls: int = 64
    tokens: int | None = None
    seconds: float | None = None
    usd: float | None = None


class PendingCall(Struct, frozen=True):
    """A call of an earlier answer about which a person was asked."""

    id: str
    name: str
    arguments: str


class AgentPlan(Struct, frozen=True, kw_only=True):
    """How a request is run. Calls of the tools in `approval` wait for a person, whose `decisions` are by the
    ids of calls; `pending` are calls at the end of the conversation that were decided on."""

    run_id: str
    tools: tuple[ToolSpec, ...]
    budget: AgentBudget = AgentBudget()
    checks: tuple[AnswerCheck, ...] = ()
    max_repairs: int = 1
    approval: frozenset[str] = frozenset()
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    pending: tuple[PendingCall, ...] = ()


class StepJournal(Protocol):
    """Keeps the steps of runs; see `storage.agent_runs`."""

    async def steps(self, run_id: str) -> dict[str, bytes | None]:
        """The steps of a run; None for those that were begun and not done."""
        ...

    async def start(self, run_id: str, name: str) -> None:
        """A step begins."""
        ...

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        """A step is done."""
        ...


class NoJournal:
    """Keeps nothing."""

    async def steps(self, run_id: str) -> dict[str, bytes | None]:
        """See `StepJournal.steps`."""
        return {}

    async def start(self, run_id: str, name: str) -> None:
        """See `StepJournal.start`."""

    async def finish(self, run_id: str, name: str, body: bytes) -> None:
        """See `StepJournal.finish`."""


class ModelStep(Struct, frozen=True, kw_only=True):
    """An answer of the model as it is kept."""

    model: str
    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    reason: str
    text_reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    seed: int | None
    seconds: float


class CallStep(Struct, frozen=True):
    """A result as it is kept."""

    text: str
    is_error: bool
    seconds: float


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
    def __init__(
        self,
        inner: Handler,
        tools: ServedTools,
        plan: AgentPlan,
        journal: StepJournal,
        request: ChatRequest,
        call: CallContext,
    ) -> None:
        self._inner, self._tools, self._plan, self._journal = inner, tools, plan, journal
        self._call = call
        self._specs = {spec.name: spec for spec in plan.tools}
        offered = _with_tools(request.tools, plan.tools)
        self._request = replace(request, tools=offered)
        self._callable = {one.name for one in offered.callable} if offered is not None else set[str]()
        self._messages = list(request.messages)
        self._kept: dict[str, bytes | None] = {}
        self._step: ModelStep | None = None
        self._is_announced = False
        self._tokens = self._completion = self._cached = self._tool_calls = self._repairs = 0
        self._seconds = 0.0
        self._seen: Counter[bytes] = Counter()
        self._stop: StopReason | None = None
        self._verifier = Verifier(inner, tools)

    async def events(self) -> AsyncGenerator[Batch]:
        """The events of the whole run: `Prepared` and `Started` are those of its first step."""
        self._kept = await self._journal.steps(self._plan.run_id)
        pending = [ToolCall(one.id, one.name, one.arguments) for one in self._plan.pending]
        waiting: list[Batch] = []
        if pending:  # the reply begins with the first step of the model
            waiting = [batch async for batch in self._called("pending", pending)]
        number = 0
        while self._stop is None:
            self._stop = self._exceeded(number)
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

    def _exceeded(self, number: int) -> StopReason | None:
        budget = self._plan.budget
        if number >= budget.steps:
            return "steps"
        if budget.tokens is not None and self._tokens >= budget.tokens:
            return "tokens"
        return "seconds" if budget.seconds is not None and self._seconds >= budget.seconds else None

    async def _answered(self, number: int) -> AsyncGenerator[Batch]:
        """One answer of the model, kept or made; `_step` is it, None where there is no budget for it."""
        kept = self._kept.get(str(number))
        self._step = None
        if kept is not None:
            self._step = msgspec.json.decode(kept, type=ModelStep)
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
        step = self._step
        if step is not None:
            self._tokens += step.prompt_tokens + step.completion_tokens
            self._completion += step.completion_tokens
            self._cached += step.cached_tokens
            self._seconds += step.seconds

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
        began_s = time.monotonic()
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
                parts = [
                    part
                    for event in batch
                    if isinstance(event, OutputDelta | OutputFinished)
                    for part in event.parts
                    if isinstance(part, Reasoning) or (isinstance(part, Text) and not self._plan.checks)
                ]
                if parts:
                    yield [OutputDelta(0, tuple(parts))]
        finally:
            await batches.aclose()
        result = collector.prompts[0]
        if result.finished is None:  # the time was over
            self._stop = "seconds"
            return
        choice, usage = result.choices[0], result.ended.usage
        step = ModelStep(
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
            seconds=time.monotonic() - began_s,
        )
        await self._journal.finish(self._plan.run_id, str(number), msgspec.json.encode(step))
        self._step = step

    async def _opened(self, number: int) -> tuple[Prepared, EventBatches] | None:
        """The stream of the next answer, with as many tokens as are left; None where there are none."""
        request = self._next_request(number)
        batches, prepared = await self._begun(request)
        most = self._plan.budget.tokens
        if most is None:
            return prepared, batches
        prompt = sum(len(one.tokens) or one.estimated_tokens for one in prepared.prompts)
        left = most - self._tokens - prompt
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

    def _next_request(self, number: int) -> ChatRequest:
        budget, request = self._plan.budget, self._request
        if number:  # the one before may not have ended everywhere
            request = replace(request, id=f"{request.id}.{number}")
        if budget.seconds is not None:
            left_s = max(budget.seconds - self._seconds, 0.001)
            request = replace(request, deadline_s=min(left_s, request.deadline_s or left_s))
        if budget.usd is not None:
            wishes = request.route or RouteWishes()
            part = budget.usd / budget.steps
            least = part if wishes.max_usd is None else min(part, wishes.max_usd)
            request = replace(request, route=replace(wishes, max_usd=least))
        return replace(request, messages=tuple(self._messages))

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
        async for batch in self._called(str(number), [one for one in calls if one.name in self._specs]):
            yield batch
        theirs = [one for one in calls if one.name not in self._specs]
        if theirs and self._stop is None:
            yield [OutputDelta(0, tuple(_parts(theirs)))]
            self._stop = "tool_calls"

    async def _finished(self, number: int, step: ModelStep) -> AsyncGenerator[Batch]:
        problem = None
        if step.text_reason == "stop" and self._plan.checks:
            name = f"{number}.check"
            kept = self._kept.get(name)
            if kept is None:
                with self._call.stage("verify", step=number) as note:
                    problem = await self._verifier.problem(
                        self._plan.checks, step.content, self._request, self._call
                    )
                    note.output = problem or ""
                await self._journal.finish(self._plan.run_id, name, msgspec.json.encode(problem))
            else:
                problem = msgspec.json.decode(kept, type=str | None)
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

    async def _called(self, place: str, calls: Sequence[ToolCall]) -> AsyncGenerator[Batch]:
        """Make the calls of an answer: those that only read beside one another, others one by one."""
        at = 0
        while at < len(calls) and self._stop is None:
            group = [calls[at]]
            while self._reads(group[0]) and at + len(group) < len(calls) and len(group) < MAX_PARALLEL:
                following = calls[at + len(group)]
                if not self._reads(following):
                    break
                group.append(following)
            left = self._plan.budget.tool_calls - self._tool_calls
            group = group[:left]
            if not group:
                self._stop = "tool_budget"
                return
            asked = self._asked(place, at, group)
            if asked:
                rest = [one for one in calls[at + 1 :] if self._needs_approval(one)]
                yield [*asked, *(_wanted(one, self._specs[one.name]) for one in rest)]
                self._stop = "approval"
                return
            yield [ToolCalled(one.id, one.name, self._specs[one.name].server, one.arguments) for one in group]
            self._tool_calls += len(group)
            names = [f"{place}.{at + index}" for index in range(len(group))]
            results = await asyncio.gather(*map(self._result, names, group))
            for one, result in zip(group, results, strict=True):
                self._take(one, result)
            yield [ToolReturned(one.id, r.text, r.is_error) for one, r in zip(group, results, strict=True)]
            at += len(group)

    def _reads(self, call: ToolCall) -> bool:
        return self._specs[call.name].reads_only and not self._needs_approval(call)

    def _needs_approval(self, call: ToolCall) -> bool:
        return call.name in self._plan.approval and call.id not in self._plan.decisions

    def _asked(self, place: str, at: int, group: Sequence[ToolCall]) -> list[ApprovalWanted]:
        """What a person has to be asked before these calls."""
        found: list[ApprovalWanted] = []
        for index, one in enumerate(group):
            name, spec = f"{place}.{at + index}", self._specs[one.name]
            was_begun = name in self._kept and self._kept[name] is None and not spec.idempotent
            is_done = self._kept.get(name) is not None
            if (
                not is_done
                and one.id not in self._plan.decisions
                and (was_begun or self._needs_approval(one))
            ):
                found.append(_wanted(one, spec, was_begun=was_begun))
        return found

    async def _result(self, name: str, call: ToolCall) -> CallStep:
        kept, spec = self._kept.get(name), self._specs[call.name]
        if kept is not None:
            return msgspec.json.decode(kept, type=CallStep)
        began_s = time.monotonic()
        decision = self._plan.decisions.get(call.id, "approve")
        if decision.startswith("result:"):
            result = ToolResult(text=decision.removeprefix("result:"))
        elif decision != "approve":
            text = "It is not known whether this call was made." if name in self._kept else _REFUSED
            result = ToolResult(text=text, is_error=True)
        else:
            if not spec.reads_only:
                await self._journal.start(self._plan.run_id, name)
            result = await self._run(name, call)
        step = CallStep(result.text, result.is_error, time.monotonic() - began_s)
        await self._journal.finish(self._plan.run_id, name, msgspec.json.encode(step))
        return step

    async def _run(self, name: str, call: ToolCall) -> ToolResult:
        left_s = None
        if self._plan.budget.seconds is not None:
            left_s = max(self._plan.budget.seconds - self._seconds, 0.001)
        try:
            arguments: object = msgspec.json.decode(call.arguments or "{}")
            if not isinstance(arguments, dict):
                return ToolResult(text="the arguments are no object", is_error=True)
            async with asyncio.timeout(left_s):
                return await self._tools.run(call.name, arguments, self._call, f"{self._plan.run_id}.{name}")  # pyright: ignore[reportUnknownArgumentType]
        except msgspec.DecodeError:
            return ToolResult(text="the arguments are no JSON", is_error=True)
        except TimeoutError:
            return ToolResult(text="the time of this run is over", is_error=True)
        except HeadraceError as error:  # the model reads it, and may do otherwise
            return ToolResult(text=error.message, is_error=True)

    def _take(self, call: ToolCall, result: CallStep) -> None:
        """A result becomes part of the conversation."""
        self._seconds += result.seconds
        text = spotlighted(call.name, result.text)
        self._messages.append(Message("tool", text, name=call.name, tool_call_id=call.id))
        same = hashlib.sha256(
            msgspec.json.encode([call.name, _canonical(call.arguments), result.text])
        ).digest()
        self._seen[same] += 1
        if self._seen[same] >= MAX_SAME:
            self._stop = "loop"

    def _end(self) -> list[OutputFinished | PromptFinished]:
        step, stop = self._step, self._stop or "stop"
        is_whole = stop in ("stop", "tool_calls", "approval")
        prompt = self._tokens - self._completion
        usage = Usage(prompt, self._completion, self._cached)
        seed = None if step is None else step.seed
        finished = OutputFinished(0, (), stop, "stop" if is_whole else "length")
        return [finished, PromptFinished(0, usage, _NO_TIMING, seed)]


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


def _wanted(call: ToolCall, spec: ToolSpec, *, was_begun: bool = False) -> ApprovalWanted:
    return ApprovalWanted(call.id, call.name, spec.server, call.arguments, was_begun)


def _parts(calls: Sequence[ToolCall]) -> list[CallStart | ArgumentsPart | CallEnd]:
    return [
        part
        for index, one in enumerate(calls)
        for part in (CallStart(index, one.id, one.name), ArgumentsPart(index, one.arguments), CallEnd(index))
    ]


def _canonical(arguments: str) -> str:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted").decode()
    except msgspec.DecodeError:
        return arguments
