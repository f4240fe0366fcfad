"""The calls of an answer: asked about, made, and given back to the model."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence

import msgspec

from headrace.chat.messages import Message, ToolCall
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.events import ApprovalWanted, ToolCalled, ToolReturned
from headrace.inference.handler import Batch
from headrace.struct_types import thread_safe
from headrace.tools.agent.budget import BudgetUse
from headrace.tools.agent.plan import AgentPlan, StopReason
from headrace.tools.agent.steps import CallStep, StepJournal
from headrace.tools.tool import ServedTools, ToolResult, ToolSpec, spotlighted

MAX_SAME = 3
"""Times of a call with the same result, after which a run ends."""
MAX_PARALLEL = 8
_UNKNOWN = "It is not known whether this call was made."
_REFUSED = "The user has refused this call."


class ToolCalls:
    """Makes the calls of one run. `kept` are the steps that are in the journal; `stop` says why no more
    calls are made."""

    def __init__(
        self,
        tools: ServedTools,
        plan: AgentPlan,
        journal: StepJournal,
        kept: Mapping[str, bytes | None],
        used: BudgetUse,
        call: CallContext,
    ) -> None:
        self._tools, self._plan, self._journal, self._kept = tools, plan, journal, kept
        self._used, self._call = used, call
        self._specs = {spec.name: spec for spec in plan.tools}
        self._seen: Counter[bytes] = Counter()
        self.stop: StopReason | None = None

    def owns(self, call: ToolCall) -> bool:
        """Whether it is of a tool of this server; others are the client's."""
        return call.name in self._specs

    async def run(
        self, place: str, calls: Sequence[ToolCall], messages: list[Message]
    ) -> AsyncGenerator[Batch]:
        """Make calls, those that only read beside one another, others one by one. Their results are added to
        `messages`."""
        at = 0
        while at < len(calls) and self.stop is None:
            group = self._group(calls[at:])[: self._used.left_calls]
            if not group:
                self.stop = "tool_budget"
                return
            asked = self._asked(place, at, group)
            if asked:
                wanted = {one.id for one in asked if one.was_begun}
                for one in group:
                    if one.id in wanted:  # the reader of the stream has seen that it was called
                        yield [ToolCalled(one.id, one.name, self._specs[one.name].server, one.arguments)]
                        yield [ToolReturned(one.id, _UNKNOWN, True)]
                rest = [one for one in calls[at + 1 :] if self._needs_approval(one)]
                yield [*asked, *(_wanted(one, self._specs[one.name]) for one in rest)]
                self.stop = "approval"
                return
            yield [ToolCalled(one.id, one.name, self._specs[one.name].server, one.arguments) for one in group]
            self._used.tool_calls += len(group)
            names = [f"{place}.{at + index}" for index in range(len(group))]
            results = await asyncio.gather(*map(self._result, names, group))
            for one, result in zip(group, results, strict=True):
                messages.append(self._taken(one, result))
            yield [ToolReturned(one.id, r.text, r.is_error) for one, r in zip(group, results, strict=True)]
            at += len(group)

    def _group(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """The calls that are made next, together."""
        if not self._reads(calls[0]):
            return [calls[0]]
        most = min(len(calls), MAX_PARALLEL)
        end = next((place for place in range(most) if not self._reads(calls[place])), most)
        return list(calls[:end])

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
            return msgspec.json.decode(kept, type=thread_safe(CallStep))
        began_s = time.monotonic()
        decision = self._plan.decisions.get(call.id, "approve")
        if decision.startswith("result:"):
            result = ToolResult(text=decision.removeprefix("result:"))
        elif decision != "approve":
            text = _UNKNOWN if name in self._kept else _REFUSED
            result = ToolResult(text=text, is_error=True)
        else:
            if not spec.reads_only:
                await self._journal.start(self._plan.run_id, name)
            result = await self._made(name, call)
        step = CallStep(result.text, result.is_error, time.monotonic() - began_s)
        await self._journal.finish(self._plan.run_id, name, msgspec.json.encode(step))
        return step

    async def _made(self, name: str, call: ToolCall) -> ToolResult:
        try:
            arguments: object = msgspec.json.decode(call.arguments or "{}")
            if not isinstance(arguments, dict):
                return ToolResult(text="the arguments are no object", is_error=True)
            async with asyncio.timeout(self._used.left_s):
                return await self._tools.run(call.name, arguments, self._call, f"{self._plan.run_id}.{name}")  # pyright: ignore[reportUnknownArgumentType]
        except msgspec.DecodeError:
            return ToolResult(text="the arguments are no JSON", is_error=True)
        except TimeoutError:
            return ToolResult(text="the time of this run is over", is_error=True)
        except HeadraceError as error:  # the model reads it, and may do otherwise
            return ToolResult(text=error.message, is_error=True)

    def _taken(self, call: ToolCall, result: CallStep) -> Message:
        """A result as part of the conversation."""
        self._used.seconds += result.seconds
        same = hashlib.sha256(
            msgspec.json.encode([call.name, _canonical(call.arguments), result.text])
        ).digest()
        self._seen[same] += 1
        if self._seen[same] >= MAX_SAME:
            self.stop = "loop"
        text = spotlighted(call.name, result.text)
        return Message("tool", text, name=call.name, tool_call_id=call.id)


def _wanted(call: ToolCall, spec: ToolSpec, *, was_begun: bool = False) -> ApprovalWanted:
    return ApprovalWanted(call.id, call.name, spec.server, call.arguments, was_begun)


def _canonical(arguments: str) -> str:
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments), order="sorted").decode()
    except msgspec.DecodeError:
        return arguments
