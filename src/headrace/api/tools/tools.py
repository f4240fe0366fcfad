"""GET /v1/tools and POST /v1/tools/{name}: the tools of this server, and calls of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, loose, read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import get_service
from headrace.tools.tool import ToolSpec, ToolUnavailable

_EXTRA = {501: "headrace[tools] is not installed."}


class ToolEntry(Struct, frozen=True, kw_only=True):
    """A tool that the key may call. `server` is the MCP server that has it; `pinned`: it is as a person has
    approved it."""

    name: str
    title: str | None
    description: str
    parameters: dict[str, Any]
    reads_only: bool
    server: str | None
    pinned: bool


class ToolStanding(Struct, frozen=True):
    """How a tool of a server stands, and why it cannot be used."""

    name: str
    status: str
    reason: str


class ToolServer(Struct, frozen=True):
    """An MCP server: why it cannot be used, where it cannot, and its tools."""

    name: str
    error: str | None
    tools: list[ToolStanding]


class ToolList(Struct, frozen=True):
    """The tools that the key may call, and the servers that it may use."""

    data: list[ToolEntry]
    servers: list[ToolServer]
    object: Literal["list"] = "list"


class ToolCallBody(RequestBody, kw_only=True):
    """The arguments of a call."""

    arguments: Annotated[dict[str, Any], Meta(extra_json_schema={"type": "object"})] = {}  # noqa: RUF012


class ToolReplyImage(Struct, frozen=True):
    """An image of a result, as base64."""

    media_type: str
    data: str


class ToolReply(Struct, frozen=True, kw_only=True):
    """What a call has given. `cut`: there was more."""

    name: str
    text: str
    structured: Annotated[Any, loose({})] | UnsetType = UNSET
    images: list[ToolReplyImage]
    is_error: bool
    cut: bool


@Endpoint("GET", "/v1/tools", reply=ToolList, errors=_EXTRA | {502: "There is no tool, and why."})
async def list_tools(http: HttpRequest) -> Response:
    """The tools that the key may call, and how their servers stand. No server is asked for it."""
    service, call = get_service(http), call_of(http)
    specs = (await service.tools.toolbox()).specs(call)
    states = await service.tools.states(call.account.name)
    servers = [
        ToolServer(
            state.name,
            state.error,
            [ToolStanding(one.name, one.standing, one.reason) for one in state.tools],
        )
        for state in states
    ]
    if not specs:
        reasons = "; ".join(f"{one.name}: {one.error}" for one in states) or "none is configured"
        raise ToolUnavailable(f"there is no tool that this key may call: {reasons}")
    return json_response(ToolList([_entry(spec) for spec in specs], servers))


@Endpoint(
    "POST",
    "/v1/tools/{name}",
    body=ToolCallBody,
    reply=ToolReply,
    errors=_EXTRA
    | {
        402: "A budget is used up.",
        403: "The tool is not as it was approved.",
        404: "There is no such tool for this key.",
        502: "The tool's server has failed.",
        504: "The tool has not answered in time.",
    },
)
async def call_tool(http: HttpRequest, name: str) -> Response:
    """Call a tool. Its own errors are results with `is_error`."""
    service, call = get_service(http), call_of(http)
    body = await read_checked(ToolCallBody, http)
    toolbox = await service.tools.toolbox()
    result = await done(http, toolbox.run(name, body.arguments, call))
    return json_response(
        ToolReply(
            name=name,
            text=result.text,
            structured=UNSET if result.structured is None else result.structured,
            images=[ToolReplyImage(one.media_type, one.data) for one in result.images],
            is_error=result.is_error,
            cut=result.cut,
        )
    )


def _entry(spec: ToolSpec) -> ToolEntry:
    return ToolEntry(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        parameters=spec.parameters,
        reads_only=spec.reads_only,
        server=spec.server,
        pinned=spec.server is not None,
    )
