"""`headrace.Agent`: a model that uses tools until a task is done, from Python."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import msgspec
from msgspec import Struct

from headrace.api.statements import Statements
from headrace.api.tool_gateway import gateway_of
from headrace.api.tools.own_tools import sql_tools
from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Text
from headrace.config.extras import require
from headrace.config.settings import Settings
from headrace.config.sources import load_settings
from headrace.engine.request import Usage
from headrace.errors import InvalidRequest, UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    ApprovalWanted,
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    PromptFinished,
    ToolCalled,
    ToolReturned,
)
from headrace.inference.handler import Handler
from headrace.inference.keyword_types import ModelKeywords
from headrace.inference.keywords import new_call
from headrace.inference.loop_thread import LoopThread
from headrace.inference.requests import ChatRequest
from headrace.inference.store_threads import StoreThreads
from headrace.llm import AsyncLLM
from headrace.storage.agent_runs import AgentRuns
from headrace.storage.database import Database
from headrace.struct_types import thread_safe
from headrace.tools.agent.run_journal import RunJournal
from headrace.tools.tool import Arguments, Json, ToolResult, ToolSpec
from headrace.tools.toolbox import OwnTool, OwnTools, Toolbox
from headrace.tools.visible import cut, visible

if TYPE_CHECKING:
    from headrace.tools.agent.plan import AgentPlan
    from headrace.tools.mcp.gateway import McpGateway

MAX_RESULT = 2**16
Approve = Callable[[str, Json], bool]
"""Whether a call, by its tool's name and arguments, may be made."""
OnEvent = Callable[[InferenceEvent], None]


class AgentCall(Struct, frozen=True):
    """A call that a run has made, and what it has given."""

    name: str
    arguments: str
    output: str
    is_error: bool


class AgentResult(Struct, frozen=True, kw_only=True):
    """What has come of a task. `reason` says how it ended: stop, or the budget that was used up, loop,
    verification, or approval where calls in `waiting` (id, name, arguments) wait for a decision."""

    text: str
    reason: str
    run_id: str
    calls: tuple[AgentCall, ...]
    usage: Usage
    waiting: tuple[tuple[str, str, str], ...] = ()


class Agent:
    """A model with tools. Ends with `close` or `with`.

    `tools` are functions of Python (their annotations are the schema), and names: "sql" (the datasets of
    headrace.toml), "mcp:SERVER" (its approved tools) or "mcp:SERVER/TOOL". `budget` has steps, tool_calls,
    tokens, seconds, usd; `verify` are checks such as {"kind": "regex", "pattern": "^[0-9]+$"}. Calls of tools
    that do not only read wait for `approve`; without it they are made, but for those of MCP servers, for
    which the result's reason is approval. With `store`, a file, each step is kept, and a run that was
    interrupted goes on where it was, by its `run_id`. `options` are those of `LLM`.

        with Agent(tools=[weather], budget={"steps": 4}) as agent:
            print(agent.run("Is it warmer in Oslo or in Rome?").text)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        tools: Sequence[str | Callable[..., Any]] = (),
        budget: Mapping[str, float] | None = None,
        verify: Sequence[Mapping[str, object]] = (),
        max_repairs: int = 1,
        approve: Approve | None = None,
        store: str | Path | None = None,
        handler: Handler | None = None,
        settings: Settings | None = None,
        **options: Unpack[ModelKeywords],
    ) -> None:
        """`handler` takes the place of a model. Raises UsageError, and ExtraMissing without
        headrace[tools]."""
        require("tools", "mcp", "jsonschema_rs")
        self._loop: Any = importlib.import_module("headrace.tools.agent.loop")
        self._plans: Any = importlib.import_module("headrace.tools.agent.plan")
        checks: Any = importlib.import_module("headrace.tools.agent.verify")
        try:
            kind = thread_safe(self._plans.AgentBudget)
            self._budget = msgspec.convert(dict(budget or {}), kind, strict=False)
        except msgspec.ValidationError as error:
            raise UsageError(f"budget: {error}") from None
        self._checks = checks.read_checks([dict(one) for one in verify])
        self._max_repairs, self._approve = max_repairs, approve
        self._settings = settings if settings is not None else load_settings()
        self._gateway: McpGateway | None = None
        self._statements: Statements | None = None
        own = [made for tool in tools for made in self._own(tool)]
        check = importlib.import_module("headrace.tools.arguments").check_arguments
        self._names = [name for name in tools if isinstance(name, str) and name.startswith("mcp:")]
        self._toolbox = Toolbox(OwnTools(own, check), self._mcp())
        self._llm = None if handler is not None else AsyncLLM(model, **options)
        self._handler = handler if self._llm is None else self._llm.handler
        self._database = Database(None if store is None else Path(store))
        self._threads, self._thread = StoreThreads(1), LoopThread()

    def run(
        self,
        task: str,
        *,
        run_id: str | None = None,
        decisions: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
        **sampling: Any,
    ) -> AgentResult:
        """Work on a task until it is done or a budget is used up. A `run_id` that is in the store goes on.
        `decisions` about calls are by their ids: approve, deny, or result:TEXT. `on_event` sees the
        events."""
        work = self._run(task, run_id or f"run_{uuid.uuid4().hex}", dict(decisions or {}), on_event, sampling)
        return self._thread.run(work)

    def close(self) -> None:
        """End the model, and the servers of tools."""
        self._thread.close()
        if self._llm is not None:
            self._llm.close()
        if self._gateway is not None:
            self._gateway.close()
        if self._statements is not None:
            self._statements.close()
        self._threads.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _run(
        self,
        task: str,
        run_id: str,
        decisions: dict[str, str],
        on_event: OnEvent | None,
        sampling: Mapping[str, Any],
    ) -> AgentResult:
        runs = AgentRuns(self._database)
        asked = msgspec.json.encode({"task": task, "sampling": sampling}, order="sorted")
        kept = await self._threads.run(lambda: runs.begin(run_id, "", asked))
        if kept is not None and kept != asked:
            raise UsageError(f"the run {run_id} is of another task: leave run_id out", param="run_id")
        call = new_call()
        specs = self._chosen(call)
        request = ChatRequest(id=run_id, messages=(Message("user", task),), sampling={"seed": 0, **sampling})
        journal = RunJournal(runs, self._threads)
        while True:
            plan = self._plan(run_id, specs, decisions)
            assert self._handler is not None
            agent: Handler = self._loop.AgentHandler(self._handler, self._toolbox, plan, journal)
            seen = _Seen(run_id)
            async for batch in agent.handle(request, call):
                for event in batch:
                    seen.take(event)
                    if on_event is not None:
                        on_event(event)
            result = seen.result()
            if result.reason != "approval" or self._approve is None:
                return result
            for call_id, name, arguments in result.waiting:
                agreed = await asyncio.to_thread(self._approve, name, json.loads(arguments))
                decisions[call_id] = "approve" if agreed else "deny"

    def _plan(self, run_id: str, specs: Sequence[ToolSpec], decisions: Mapping[str, str]) -> AgentPlan:
        asks_all = self._approve is not None
        approval = {one.name for one in specs if not one.reads_only and (asks_all or one.server is not None)}
        plan: AgentPlan = self._plans.AgentPlan(
            run_id=run_id,
            tools=tuple(specs),
            budget=self._budget,
            checks=self._checks,
            max_repairs=self._max_repairs,
            approval=frozenset(approval),
            decisions=dict(decisions),
        )
        return plan

    def _chosen(self, call: CallContext) -> list[ToolSpec]:
        found: list[ToolSpec] = []
        wanted = [tuple(name.removeprefix("mcp:").partition("/")) for name in self._names]
        for spec in self._toolbox.specs(call):
            tool = spec.name.removeprefix(f"{spec.server}__")
            if spec.server is None or any(s == spec.server and t in ("", tool) for s, _, t in wanted):
                found.append(spec)
        for server, _, tool in wanted:
            if not any(spec.server == server and (not tool or spec.name.endswith(tool)) for spec in found):
                raise UsageError(
                    f"mcp:{server} has no such tool that may be used: see `headrace mcp list {server}`"
                )
        return found

    def _own(self, tool: str | Callable[..., Any]) -> list[OwnTool]:
        if not isinstance(tool, str):
            return [_function_tool(tool)]
        if tool == "sql":
            self._statements = self._statements or Statements(self._settings)
            return list(sql_tools(self._statements))
        if not tool.startswith("mcp:"):
            raise UsageError(f'there is no tool {tool!r}: give "sql", "mcp:SERVER" or a function')
        return []

    def _mcp(self) -> McpGateway | None:
        if not self._names:
            return None
        self._gateway = gateway_of(self._settings)
        return self._gateway


class _Seen:
    """What the events of a run come to."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._texts: list[str] = []
        self._begun: dict[str, ToolCalled] = {}
        self._calls: list[AgentCall] = []
        self._waiting: list[tuple[str, str, str]] = []
        self._reason = "stop"
        self._usage = Usage(0, 0, 0)

    def take(self, event: InferenceEvent) -> None:
        match event:
            case OutputDelta(parts=parts):
                self._texts += [part.text for part in parts if isinstance(part, Text)]
            case ToolCalled(id=call_id):
                self._begun[call_id] = event
                self._texts.clear()  # the text of the last step is the answer
            case ToolReturned(id=call_id, output=output, is_error=is_error):
                begun = self._begun.pop(call_id)
                self._calls.append(AgentCall(begun.name, begun.arguments, output, is_error))
            case ApprovalWanted():
                self._waiting.append((event.id, event.name, event.arguments))
            case OutputFinished(reason=reason):
                self._reason = reason
            case PromptFinished(usage=usage):
                self._usage = usage
            case _:
                pass

    def result(self) -> AgentResult:
        return AgentResult(
            text="".join(self._texts),
            reason=self._reason,
            run_id=self._run_id,
            calls=tuple(self._calls),
            usage=self._usage,
            waiting=tuple(self._waiting),
        )


def _function_tool(function: Callable[..., Any]) -> OwnTool:
    """A function as a tool: its parameters' annotations are the schema, its docstring the description."""
    name = function.__name__
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    if any(
        one.annotation is one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters
    ):
        raise UsageError(f"the tool {name} has a parameter without a type: annotate all of them")
    required = [(one.name, one.annotation) for one in parameters if one.default is one.empty]
    others = [(one.name, one.annotation, one.default) for one in parameters if one.default is not one.empty]
    kind = msgspec.defstruct(f"{name}_arguments", [*required, *others], kw_only=True)
    [schema], defined = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole = cast("Json", defined.pop(str(schema["$ref"]).rpartition("/")[2]))
    if defined:
        whole["$defs"] = defined

    async def run(arguments: Arguments, call: CallContext) -> ToolResult:
        try:
            given = msgspec.structs.asdict(msgspec.convert(arguments, thread_safe(kind)))
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{name}: {error}") from None
        try:
            value = function(**given)
            value = await value if inspect.isawaitable(value) else value
        except Exception as error:
            return ToolResult(text=f"{type(error).__name__}: {error}"[:500], is_error=True)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        text, is_cut = cut(visible(text), MAX_RESULT)
        return ToolResult(text=text, cut=is_cut)

    spec = ToolSpec(name=name, description=inspect.getdoc(function) or "", parameters=whole)
    return OwnTool(spec, run)
