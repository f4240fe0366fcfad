"""Requests whose tools this server calls: what of its tools they may use, and what waits for the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from headrace.api.openai.responses.body import SERVER_TOOLS, ResponseBody, RunBudget
from headrace.api.openai.responses.file_search import FileSearch, with_file_search
from headrace.api.openai.responses.items import (
    FILE_SEARCH,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
)
from headrace.api.openai.responses.turns import merged
from headrace.api.service import Service
from headrace.config.extras import extra_module
from headrace.config.mcp import read_mcp
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler
from headrace.inference.requests import ChatRequest
from headrace.storage.agent_runs import AgentRuns
from headrace.tools.agent.run_journal import RunJournal
from headrace.tools.tool import ServedTools, ToolSpec, ToolUnavailable

if TYPE_CHECKING:
    from headrace.tools.agent.plan import PendingCall

_MCP_FIELDS = (
    "type",
    "server_label",
    "server_url",
    "server_description",
    "allowed_tools",
    "require_approval",
)
_OWN: Mapping[str, tuple[str, ...]] = {
    "sql": ("sql", "list_datasets", "table_schema"),
    "search": ("search",),
    "file_search": ("search",),
}
Json = dict[str, Any]


async def agent_of(
    body: ResponseBody, items: Sequence[Item], request: ChatRequest, call: CallContext, service: Service
) -> Handler:
    """What answers a request with tools of this server. Raises InvalidRequest for tools that are none,
    ToolUnavailable where a server has none that may be used."""
    if body.wants_logprobs or body.constraint() is not None:
        raise InvalidRequest(
            "text.format and log probabilities are for answers without tools of this server: check the "
            "answer with verify",
            param="text" if body.text is not None else "include",
        )
    loop, plans, checks = (
        extra_module("tools", f"headrace.tools.agent.{name}", "mcp", "jsonschema_rs")
        for name in ("loop", "plan", "verify")
    )
    toolbox: ServedTools = await service.tools.toolbox()
    for where, tool in _tools_of(body):
        if tool.get("type") == FILE_SEARCH and tool.get("vector_store_ids") is not None:
            if isinstance(toolbox, FileSearch):
                raise InvalidRequest(
                    f"{where}: there is one file_search already: name all stores in it", param="tools"
                )
            toolbox = await with_file_search(toolbox, tool, where, call, service)
    specs, approval = _chosen(body, toolbox.specs(call), service)
    budget, pending = body.budget or RunBudget(), _decided(items)
    plan = plans.AgentPlan(
        run_id=request.id,
        tools=tuple(specs),
        budget=plans.AgentBudget(
            steps=budget.steps,
            tool_calls=64 if body.max_tool_calls is None else body.max_tool_calls,
            tokens=budget.tokens,
            seconds=budget.seconds,
            usd=budget.usd,
        ),
        checks=() if body.verify is None else checks.read_checks(body.verify),
        max_repairs=1 if body.max_repairs is None else body.max_repairs,
        approval=frozenset(approval),
        decisions={one.id: decision for one, decision in pending},
        pending=tuple(_pending(one, plans.PendingCall) for one, _ in pending),
    )
    unknown = [one.name for one in plan.pending if one.name not in {spec.name for spec in specs}]
    if unknown:
        raise InvalidRequest(
            f"the approved call is of {unknown[0]!r:.80}, which is not among tools: send them again",
            param="tools",
        )
    journal = None
    if body.kept:
        runs, owner = AgentRuns(service.shared), await service.run_in_thread(call.account.owner)
        await service.run_in_thread(lambda: runs.begin(request.id, owner, b"{}"))
        goes_on = call.journal is not None and call.journal.is_resumed
        is_local = service.remote.find(request.model) is None and "/" not in (request.model or "")
        journal = RunJournal(runs, service.threads, computes_again=goes_on and is_local)
    handler: Handler = loop.AgentHandler(service.handler, toolbox, plan, journal)
    return handler


def _pending(item: McpApprovalRequest, make: type[PendingCall]) -> PendingCall:
    return make(item.id, merged(item), item.arguments)


def _decided(items: Sequence[Item]) -> list[tuple[McpApprovalRequest, str]]:
    """The calls that the client has decided on and that were not made yet."""
    made = {item.approval_request_id for item in items if isinstance(item, McpCall)}
    asked = {item.id: item for item in items if isinstance(item, McpApprovalRequest)}
    found: list[tuple[McpApprovalRequest, str]] = []
    for item in items:
        if isinstance(item, McpApprovalResponse) and item.approval_request_id not in made:
            request = asked.get(item.approval_request_id)
            if request is None:
                raise InvalidRequest(
                    f"there is no mcp_approval_request {item.approval_request_id[:80]!r} before its "
                    "response: send previous_response_id",
                    param="input",
                )
            found.append((request, "approve" if item.approve else "deny"))
    return found


def _chosen(
    body: ResponseBody, specs: Sequence[ToolSpec], service: Service
) -> tuple[list[ToolSpec], set[str]]:
    """The tools that the request names, and those of which a person is asked first."""
    chosen: dict[str, ToolSpec] = {}
    approval: set[str] = set()
    for where, tool in _tools_of(body):
        if tool.get("type") not in SERVER_TOOLS:
            continue
        if tool["type"] == "mcp":
            label = _label(tool, where, service)
            found = _filtered(tool, [spec for spec in specs if spec.server == label], where)
            if not found:
                raise _none(label, service, call_name=where)
            approval |= _approval(tool.get("require_approval", "always"), found, where, label)
        else:
            names = (FILE_SEARCH,) if tool.get("vector_store_ids") is not None else _OWN[tool["type"]]
            found = [spec for spec in specs if spec.server is None and spec.name in names]
            if not found:
                raise InvalidRequest(f"{where}: this server has no {tool['type']}", param="tools")
            if len(tool) > 1 and names != (FILE_SEARCH,):
                hint = ": name vector_store_ids" if tool["type"] == FILE_SEARCH else ""
                raise InvalidRequest(
                    f"{where}: a tool of type {tool['type']} has no other fields{hint}", param="tools"
                )
        chosen |= {spec.name: spec for spec in found}
    return list(chosen.values()), approval


def _tools_of(body: ResponseBody) -> list[tuple[str, Json]]:
    """The tools of a request, each with its place."""
    tools = enumerate(cast("list[object]", body.tools or []))
    return [(f"tools[{i}]", cast("Json", one) if isinstance(one, dict) else Json()) for i, one in tools]


def _none(label: str, service: Service, call_name: str) -> ToolUnavailable:
    return ToolUnavailable(
        f"{call_name}: the server {label!r} has no tool that may be used: see `GET /v1/tools`, allow tools "
        f"in [mcp.{label}] and approve them with `headrace mcp approve {label}`",
        param="tools",
    )


def _label(tool: Json, where: str, service: Service) -> str:
    """The configured server that a tool of type mcp means."""
    for key in tool.keys() - {*_MCP_FIELDS}:
        if tool[key] is not None:
            raise InvalidRequest(
                f"{where}.{key} is not taken: servers and their secrets are in [mcp] of headrace.toml",
                param="tools",
            )
    servers, label, url = read_mcp(service.settings.mcp), tool.get("server_label"), tool.get("server_url")
    if not isinstance(label, str) or label not in servers:
        known = ", ".join(servers) or "none"
        raise InvalidRequest(
            f"{where}.server_label is {label!r:.80}, which is no server in [mcp] of headrace.toml: there are "
            f"{known}. Servers of requests are not connected to",
            param="tools",
        )
    if url is not None and url != servers[label].url:
        raise InvalidRequest(
            f"{where}.server_url is not the address of [mcp.{label}]: leave it out", param="tools"
        )
    return label


def _filtered(tool: Json, specs: Sequence[ToolSpec], where: str) -> list[ToolSpec]:
    allowed = tool.get("allowed_tools")
    return list(specs) if allowed is None else [one for one in specs if _matches(one, allowed, where)]


def _approval(given: object, specs: Sequence[ToolSpec], where: str, label: str) -> set[str]:
    """The tools whose calls wait for the client; OpenAI's default is all."""
    if given in ("always", None):
        return {spec.name for spec in specs}
    if given == "never":
        return set()
    if not isinstance(given, dict) or not cast("Json", given).keys() <= {"always", "never"}:
        raise InvalidRequest(
            f"{where}.require_approval is not always, never, or lists of tools for them", param="tools"
        )
    lists = cast("Json", given)
    never, always = lists.get("never"), lists.get("always")
    return {
        spec.name
        for spec in specs
        if (always is not None and _matches(spec, always, where))
        or not (never is not None and _matches(spec, never, where))
    }


def _matches(spec: ToolSpec, filter: object, where: str) -> bool:
    names, reads_only = (
        (cast("Json", filter).get(key) for key in ("tool_names", "read_only"))
        if isinstance(filter, dict)
        else (filter, None)
    )
    if names is not None and not isinstance(names, list):
        raise InvalidRequest(f"{where}: a filter of tools is a list of names", param="tools")
    name = spec.name.removeprefix(f"{spec.server}__")
    is_named = names is None or name in cast("list[object]", names)
    return is_named and (reads_only is None or spec.reads_only == reads_only)
