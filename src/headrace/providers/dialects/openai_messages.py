"""A conversation in the format of OpenAI's chat completions, with the quirks of who takes it."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from headrace.chat.messages import Image, Message, ToolCall, parts_of
from headrace.chat.tools import Tool, ToolUse
from headrace.inference.requests import ChatRequest
from headrace.providers.table import ProviderRow

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")


def chat_messages(request: ChatRequest, row: ProviderRow) -> list[dict[str, Any]]:
    """`messages` of a body."""
    found = [_message(message, row) for message in request.messages]
    if request.continue_final_message and row.continues == "prefix":
        found[-1]["prefix"] = True
    return found


def _message(message: Message, row: ProviderRow) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not row.developer_role else message.role
    found: dict[str, Any] = {"role": role, "content": _content(message)}
    if message.name is not None and (role != "tool" or row.tool_names):
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = _call_id(message.tool_call_id, row)
    if message.tool_calls:
        found["tool_calls"] = [_call(call, row) for call in message.tool_calls]
    if message.reasoning is not None and row.returns_reasoning:
        found[row.returns_reasoning] = message.reasoning
    return found


def _content(message: Message) -> str | list[dict[str, Any]] | None:
    if not message.images:
        return message.content
    return [_part(part) for part in parts_of(message)]


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url: dict[str, Any] = {"url": part.url}
    if part.detail is not None:
        url["detail"] = part.detail
    return {"type": "image_url", "image_url": url}


def _call(call: ToolCall, row: ProviderRow) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": _call_id(call.id, row), "type": "function", "function": function}


def _call_id(call_id: str, row: ProviderRow) -> str:
    """The id as the provider takes it; the same id always becomes the same one."""
    if not row.short_call_ids or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def chat_tools(use: ToolUse, row: ProviderRow) -> dict[str, Any]:
    """`tools` and what goes with them."""
    found: dict[str, Any] = {"tools": [_tool(tool) for tool in use.offered]}
    names = [tool.name for tool in use.callable]
    if use.offered != use.callable:
        if len(names) == 1 and use.mode == "required":
            found["tool_choice"] = {"type": "function", "function": {"name": names[0]}}
        else:  # only some may be called: the others are not shown
            found["tools"] = [_tool(tool) for tool in use.callable]
    if use.mode == "required" and "tool_choice" not in found:
        found["tool_choice"] = row.required_choice
    if not use.parallel and row.parallel_switch:
        found["parallel_tool_calls"] = False
    return found


def _tool(tool: Tool) -> dict[str, Any]:
    function = tool.for_template()["function"]
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}
