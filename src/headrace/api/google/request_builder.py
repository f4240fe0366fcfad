"""From a body to its inference request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.api.google.body import FunctionDeclaration, GenerateContentBody, GenerationConfig, PromptBody
from headrace.api.google.contents_in import Contents
from headrace.api.google.schemas import json_schema
from headrace.api.http.body import cache_use, guard_names, targets_of, wishes_of
from headrace.api.http.sampling_fields import given_sampling
from headrace.chat.tools import Tool, ToolUse, distinct_tools, function_tool
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, choice_constraint, schema_constraint
from headrace.inference.requests import ChatRequest, ReasoningSettings

_SAMPLING: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "candidate_count": "n",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_THINKING = "generationConfig.thinkingConfig"
REASONING_NAMES: Mapping[str, str] = {"enabled": _THINKING, "max_tokens": _THINKING, "effort": _THINKING}


def generate_request(body: GenerateContentBody, model: str, reply_id: str) -> ChatRequest:
    """The request of generateContent; InvalidRequest names what contradicts itself."""
    return prompt_request(
        body,
        model,
        reply_id,
        fit_context=True,
        slo=targets_of(body.slo),
        route=wishes_of(body.route),
        guards=guard_names(body.guard),
        cache=cache_use(body.cache),
    )


def prompt_request(body: PromptBody, model: str, reply_id: str, **generation: Any) -> ChatRequest:
    """A request with the prompt of a body; `generation` are further fields."""
    turns, config = Contents(body), body.generation_config or GenerationConfig()
    use, constraint = _tool_use(body), _format(config)
    if turns.is_continuation and (use is not None or constraint is not None):
        raise InvalidRequest(
            "contents: the last turn is the model's, and an answer that continues it is nothing but text: "
            "leave out tools and formats, or that turn",
            param="contents",
        )
    return ChatRequest(
        id=reply_id,
        model=model,
        messages=tuple(turns.messages),
        tools=use,
        reasoning=_reasoning(config),
        constraint=constraint,
        sampling=_sampling(config),
        continue_final_message=turns.is_continuation,
        **generation,
    )


def _sampling(config: GenerationConfig) -> dict[str, Any]:
    found = given_sampling(config, _SAMPLING)
    if config.logprobs is not None and not config.response_logprobs:
        raise InvalidRequest(
            "generationConfig.logprobs needs responseLogprobs: true", param="generationConfig.logprobs"
        )
    if config.response_logprobs:
        found["logprobs"] = config.logprobs or 0
    return found


def _tool_use(body: PromptBody) -> ToolUse | None:
    declared = [one for tool in body.tools or () for one in tool.function_declarations]
    offered = distinct_tools(
        [_tool(one, f"tools.functionDeclarations[{at}]") for at, one in enumerate(declared)]
    )
    calling = body.tool_config.function_calling_config if body.tool_config is not None else None
    mode, names = ("AUTO", None) if calling is None else (calling.mode, calling.allowed_function_names)
    if not offered:
        if mode in ("ANY", "VALIDATED") or names:
            raise InvalidRequest("toolConfig needs functionDeclarations in tools", param="toolConfig")
        return None
    if mode == "NONE":
        return None
    known = {tool.name for tool in offered}
    for name in names or ():
        if name not in known:
            raise InvalidRequest(
                f"toolConfig allows {name[:80]!r}, which is not among tools: {', '.join(sorted(known))}",
                param="toolConfig",
            )
    callable_ = tuple(tool for tool in offered if not names or tool.name in names)
    return ToolUse(offered, callable_, "required" if mode == "ANY" else "auto")


def _tool(declared: FunctionDeclaration, where: str) -> Tool:
    if declared.parameters is not None and declared.parameters_json_schema is not None:
        raise InvalidRequest(f"{where} has parameters and parametersJsonSchema: give one", param="tools")
    schema = declared.parameters_json_schema
    if declared.parameters is not None:
        schema = json_schema(declared.parameters, "tools")
    fields = {"name": declared.name, "description": declared.description, "parameters": schema}
    return function_tool(fields, where)


def _format(config: GenerationConfig) -> Constraint | None:
    where, kind = "generationConfig.responseSchema", config.response_mime_type or "text/plain"
    schema = config.response_json_schema
    if config.response_schema is not None:
        if schema is not None:
            raise InvalidRequest(f"{where} and responseJsonSchema are both given: give one", param=where)
        schema = json_schema(config.response_schema, where)
    if kind == "text/plain":
        if schema is not None:
            raise InvalidRequest(f"{where} needs responseMimeType application/json", param=where)
        return None
    if kind == "text/x.enum":
        choices = (schema or {}).get("enum")
        if not isinstance(choices, list) or not choices:
            raise InvalidRequest(f"{where} needs enum, a list of texts, for text/x.enum", param=where)
        return choice_constraint([str(one) for one in choices], param=where)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return Constraint("json_object") if schema is None else schema_constraint(json.dumps(schema), param=where)


def _reasoning(config: GenerationConfig) -> ReasoningSettings:
    thinking = config.thinking_config
    if thinking is None:
        return ReasoningSettings(names=REASONING_NAMES)
    budget, level = thinking.thinking_budget, thinking.thinking_level
    if budget is not None and level is not None:
        raise InvalidRequest(f"{_THINKING} has a budget and a level: give one", param=_THINKING)
    return ReasoningSettings(
        enabled=None if budget is None else budget != 0,
        effort=None if level is None else level.lower(),
        max_tokens=budget if budget is not None and budget > 0 else None,
        names=REASONING_NAMES,
    )
