"""Bodies of Anthropic's Messages API."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from headrace.chat.messages import Image, Message, parts_of
from headrace.chat.tools import ToolUse
from headrace.inference.requests import ChatRequest, GenerationRequest, ReasoningSettings
from headrace.providers.call_memory import CALLS
from headrace.providers.dialect import Warn
from headrace.providers.dialects.images import data_of
from headrace.providers.schemas import schema_of
from headrace.providers.target import RemoteTarget

DEFAULT_MAX_TOKENS = 4096
EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_CALL_ID = re.compile(r"[^a-zA-Z0-9_-]")


def body_of(request: GenerationRequest, target: RemoteTarget, warn: Warn) -> dict[str, Any]:
    """The body that asks a target to answer `request` as a stream."""
    assert isinstance(request, ChatRequest)
    thinking = _thinking(request.reasoning)
    is_thinking = thinking.get("type") in ("enabled", "adaptive")
    system, messages = _conversation(request, target.provider.name, is_thinking=is_thinking)
    if _lacks_signatures(messages) and is_thinking:
        warn("thinking", "was left out: the reasoning before the last calls is not known here any more")
        thinking = {}
    body: dict[str, Any] = {"model": target.model, "stream": True, "messages": messages}
    if system:
        body["system"] = system
    if thinking:
        body["thinking"] = thinking
    if request.tools is not None:
        body |= _tools(request.tools)
    output: dict[str, Any] = {}
    if request.reasoning.effort in EFFORTS:
        output["effort"] = EFFORTS[request.reasoning.effort]
    if request.constraint is not None:
        schema = schema_of(request.constraint, closes=request.disable_additional_properties)
        output["format"] = {"type": "json_schema", "schema": schema}
    if output:
        body["output_config"] = output
    return body | _sampling(request, warn)


def _sampling(request: GenerationRequest, warn: Warn) -> dict[str, Any]:
    given = {name: value for name, value in request.sampling.items() if value is not None and name != "stop"}
    if request.sampling.get("stop"):
        given["stop_sequences"] = list(request.sampling["stop"])
    if "max_tokens" not in given:
        given["max_tokens"] = DEFAULT_MAX_TOKENS
        warn("max_tokens", f"is {DEFAULT_MAX_TOKENS:,}: the target needs a limit, and none was sent")
    return given


def _thinking(settings: ReasoningSettings) -> dict[str, Any]:
    if settings.enabled is False or settings.effort == "none":
        return {"type": "disabled"}
    if settings.max_tokens is not None:
        return {"type": "enabled", "budget_tokens": settings.max_tokens}
    return {"type": "adaptive"} if settings.enabled else {}


def _tools(use: ToolUse) -> dict[str, Any]:
    shown = use.offered if use.offered == use.callable or len(use.callable) == 1 else use.callable
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        | ({"strict": True} if tool.strict else {})
        for tool in shown
    ]
    choice: dict[str, Any] = {"type": "any" if use.mode == "required" else "auto"}
    if use.mode == "required" and len(use.callable) == 1:
        choice = {"type": "tool", "name": use.callable[0].name}
    elif shown == use.offered and use.offered != use.callable:
        tools = [tool for tool in tools if tool["name"] == use.callable[0].name]
    if not use.parallel:
        choice["disable_parallel_tool_use"] = True
    return {"tools": tools} if choice == {"type": "auto"} else {"tools": tools, "tool_choice": choice}


def _conversation(
    request: ChatRequest, provider: str, *, is_thinking: bool
) -> tuple[str, list[dict[str, Any]]]:
    """The system prompt, and turns of user and assistant one after the other."""
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            system.append(message.content or "")
            continue
        role = "assistant" if message.role == "assistant" else "user"
        is_own = role == "assistant"
        blocks = _assistant(message, provider, is_thinking=is_thinking) if is_own else _user(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(filter(None, system)), turns


def _user(message: Message) -> list[dict[str, Any]]:
    blocks = [_block(part) for part in parts_of(message)]
    if message.role != "tool":
        return blocks
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id or "")}
    return [result | ({"content": blocks} if blocks else {})]


def _block(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data = data_of(part)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}


def _assistant(message: Message, provider: str, *, is_thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    first = message.tool_calls[0].id if message.tool_calls else ""
    if message.reasoning is not None and message.signature:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": message.signature})
    elif is_thinking and first and (kept := CALLS.find(provider, first)) is not None:
        blocks += msgspec.json.decode(kept)
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        arguments = msgspec.json.decode(call.arguments or "{}")
        blocks.append({"type": "tool_use", "id": _call_id(call.id), "name": call.name, "input": arguments})
    return blocks


def _call_id(call_id: str) -> str:
    return _CALL_ID.sub("_", call_id)


def _lacks_signatures(turns: list[dict[str, Any]]) -> bool:
    """Whether the turn whose calls are being answered begins without its reasoning, which the API refuses
    where it is to reason."""
    if len(turns) < 2 or not any(block["type"] == "tool_result" for block in turns[-1]["content"]):
        return False
    before = [turn for turn in turns if turn["role"] == "assistant"]
    return bool(before) and before[-1]["content"][0]["type"] not in ("thinking", "redacted_thinking")
