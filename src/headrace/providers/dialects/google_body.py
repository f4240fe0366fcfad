"""Bodies of Google's Gemini API."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import msgspec

from headrace.chat.messages import Image, Message, ToolCall, parts_of
from headrace.chat.tools import ToolUse
from headrace.inference.requests import ChatRequest, GenerationRequest, ReasoningSettings
from headrace.providers.call_memory import CALLS
from headrace.providers.dialects.images import data_of
from headrace.providers.schemas import schema_of
from headrace.providers.target import RemoteTarget

UNKNOWN_SIGNATURE = base64.b64encode(b"skip_thought_signature_validator").decode()
"""What the API takes in place of a signature that is not known any more."""
_NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "n": "candidateCount",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
LEVELS = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}


def body_of(request: GenerationRequest, target: RemoteTarget) -> dict[str, Any]:
    """The body that asks for an answer of `request` as a stream."""
    assert isinstance(request, ChatRequest)
    system = "\n\n".join(
        message.content or "" for message in request.messages if message.role in ("system", "developer")
    )
    body: dict[str, Any] = {"contents": _contents(request, target.provider.name)}
    if system:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools is not None:
        body |= _tools(request.tools)
    config = _sampling(request)
    if request.constraint is not None:
        config["responseMimeType"] = "application/json"
        if request.constraint.kind == "json_schema":
            closes = request.disable_additional_properties
            config["responseJsonSchema"] = schema_of(request.constraint, closes=closes)
    if thinking := _thinking(request.reasoning):
        config["thinkingConfig"] = thinking
    if config:
        body["generationConfig"] = config
    return body


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, value in request.sampling.items():
        if name == "logprobs" and value is not None:
            config["responseLogprobs"] = True
            if value:
                config["logprobs"] = value
        elif value is not None:
            config[_NAMES[name]] = list(value) if name == "stop" else value
    return config


def _thinking(settings: ReasoningSettings) -> dict[str, Any]:
    if settings.enabled is False or settings.effort == "none":
        return {"thinkingBudget": 0}
    found: dict[str, Any] = {}
    if settings.max_tokens is not None:
        found["thinkingBudget"] = settings.max_tokens
    elif settings.effort in LEVELS:
        found["thinkingLevel"] = LEVELS[settings.effort]
    if found or settings.enabled:
        found["includeThoughts"] = True
    return found


def _tools(use: ToolUse) -> dict[str, Any]:
    declared = [
        {"name": tool.name, "description": tool.description, "parametersJsonSchema": dict(tool.parameters)}
        for tool in use.offered
    ]
    config: dict[str, Any] = {"mode": "ANY" if use.mode == "required" else "AUTO"}
    if use.offered != use.callable:
        config = {"mode": "ANY" if use.mode == "required" else "VALIDATED"}
        config["allowedFunctionNames"] = [tool.name for tool in use.callable]
    body: dict[str, Any] = {"tools": [{"functionDeclarations": declared}]}
    return body if config == {"mode": "AUTO"} else body | {"toolConfig": {"functionCallingConfig": config}}


def _contents(request: ChatRequest, provider: str) -> list[dict[str, Any]]:
    """Turns of user and model one after the other; results of tools are the user's."""
    names = {call.id: call.name for message in request.messages for call in message.tool_calls}
    turns: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role in ("system", "developer"):
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _result(message, names) if message.role == "tool" else _parts(message, provider)
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        else:
            turns.append({"role": role, "parts": parts})
    return turns


def _parts(message: Message, provider: str) -> list[dict[str, Any]]:
    return [*map(_part, parts_of(message)), *(_call(call, provider) for call in message.tool_calls)]


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    data = data_of(part)
    if data is None:
        return {"fileData": {"fileUri": part.url}}
    return {"inlineData": {"mimeType": data[0], "data": data[1]}}


def _call(call: ToolCall, provider: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "functionCall": {"name": call.name, "args": msgspec.json.decode(call.arguments or "{}")}
    }
    kept = CALLS.find(provider, call.id)
    found["thoughtSignature"] = UNKNOWN_SIGNATURE if kept is None else kept.decode()
    return found


def _result(message: Message, names: dict[str, str]) -> list[dict[str, Any]]:
    name = message.name or names.get(message.tool_call_id or "") or ""
    text = message.content or ""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    response = cast("dict[str, Any]", value) if isinstance(value, dict) else {"result": text}
    return [{"functionResponse": {"name": name, "response": response}}]
