"""Bodies of OpenAI's chat completions and completions, and what compatible servers take besides."""

from __future__ import annotations

import json
from typing import Any, cast

from headrace.grammar.constraint import Constraint
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest, ReasoningSettings
from headrace.providers.capabilities import says_reasoning
from headrace.providers.dialects.openai_messages import chat_messages, chat_tools
from headrace.providers.schemas import is_strict, schema_of
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget


def body_of(request: GenerationRequest, target: RemoteTarget) -> dict[str, Any]:
    """The body that asks a target to answer `request` as a stream."""
    row = target.row
    body: dict[str, Any] = {"model": target.model, "stream": True}
    if row.stream_usage:
        body["stream_options"] = {"include_usage": True}
    if isinstance(request, ChatRequest):
        body["messages"] = chat_messages(request, row)
        body |= _chat_fields(request, row)
    elif isinstance(request, CompletionRequest):
        prompts = [one if isinstance(one, str) else list(one) for one in request.prompts]
        body["prompt"] = prompts[0] if len(prompts) == 1 else prompts
        if request.suffix:
            body["suffix"] = request.suffix
    body |= _sampling(request, row)
    body |= target.tier_fields
    if request.constraint is not None:
        body |= _constraint(request.constraint, row, closes=request.disable_additional_properties)
    if row.extra and (
        not row.extra_needs_reasoning
        or (isinstance(request, ChatRequest) and says_reasoning(request.reasoning))
    ):
        body |= row.extra
    if row.cache_key and request.cache_key is not None:
        body["prompt_cache_key"] = request.cache_key
    if row.extra_fields:
        body["disable_additional_properties"] = request.disable_additional_properties
    return body


def _chat_fields(request: ChatRequest, row: ProviderRow) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if request.tools is not None:
        body |= chat_tools(request.tools, row)
    if request.template_variables:
        body["chat_template_kwargs"] = dict(request.template_variables)
    if request.prediction is not None:
        body["prediction"] = {"type": "content", "content": request.prediction}
    if request.continue_final_message and row.continues in ("vllm", "sglang"):
        body["continue_final_message"] = True
        if row.continues == "vllm":
            body["add_generation_prompt"] = False
    reasoning = reasoning_fields(request.reasoning, row)
    if "chat_template_kwargs" in reasoning:
        reasoning["chat_template_kwargs"] |= body.get("chat_template_kwargs", {})
    return body | reasoning


def reasoning_fields(settings: ReasoningSettings, row: ProviderRow) -> dict[str, Any]:
    """What asks for reasoning, or for none, in the provider's form."""
    effort, enabled = settings.effort, settings.enabled
    match row.reasoning:
        case "effort":
            effort = effort or ("none" if enabled is False else None)
            return {} if effort is None else {"reasoning_effort": effort}
        case "openrouter":
            given = {"effort": effort, "max_tokens": settings.max_tokens, "enabled": enabled}
            if effort is not None or settings.max_tokens is not None:
                del given["enabled"]
            given = {name: value for name, value in given.items() if value is not None}
            return {"reasoning": given} if given else {}
        case "deepseek":
            return {} if enabled is None else {"thinking": {"type": "enabled" if enabled else "disabled"}}
        case "template" | "headrace":
            body: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
            if enabled is not None:
                body["chat_template_kwargs"] = {"enable_thinking": enabled}
            if row.reasoning == "headrace":
                body |= _budgets(settings)
            return body
        case _:
            return {}


def _budgets(settings: ReasoningSettings) -> dict[str, Any]:
    given = {
        "thinking_token_budget": settings.max_tokens,
        "min_thinking_tokens": settings.min_tokens or None,
        "thinking_continuation": settings.continuation,
    }
    return {name: value for name, value in given.items() if value is not None}


def _sampling(request: GenerationRequest, row: ProviderRow) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name, value in request.sampling.items():
        if value is None:
            continue
        if name == "logprobs":
            is_chat = isinstance(request, ChatRequest)
            body |= {"logprobs": True, "top_logprobs": value} if is_chat else {"logprobs": value}
        elif name == "logit_bias":
            body[name] = {str(token): bias for token, bias in value.items()}
        else:
            body[row.name_of(name)] = (
                list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
            )
    return body


def _constraint(wanted: Constraint, row: ProviderRow, *, closes: bool) -> dict[str, Any]:
    if wanted.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if wanted.kind == "json_schema":
        schema = schema_of(wanted, closes=closes and not row.extra_fields)
        strict = not row.strict_schemas or is_strict(schema)
        form = {"name": "answer", "schema": schema, "strict": strict}
        return {"response_format": {"type": "json_schema", "json_schema": form}}
    value: Any = json.loads(wanted.text) if wanted.kind in ("choice", "structural_tag") else wanted.text
    if row.constraint_field == "structured_outputs":
        name = "grammar" if wanted.kind in ("ebnf", "lark") else wanted.kind
        return {"structured_outputs": {name: value}}
    return {"grammar" if row.constraint_field == "grammar" else wanted.kind: value}


def is_guaranteed(wanted: Constraint, row: ProviderRow, *, closes: bool) -> bool:
    """Whether every whole answer of the provider matches, so that it need not be checked here."""
    if not row.guarantees(wanted.kind):
        return False
    if wanted.kind != "json_schema" or not row.strict_schemas:
        return True
    return is_strict(schema_of(wanted, closes=closes))
