"""From a body to its inference request."""

from __future__ import annotations

from typing import Any

from headrace.api.anthropic.body import AnyText, MessageBody, PromptBody, ThinkingDisabled, ThinkingEnabled
from headrace.api.anthropic.messages_in import Turns
from headrace.api.anthropic.tools import tool_use, warn_unused
from headrace.api.http.body import cache_use, guard_names, targets_of, wishes_of
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, schema_constraint
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest, ReasoningSettings

REASONING_NAMES = {"enabled": "thinking", "max_tokens": "thinking", "effort": "output_config.effort"}


def message_request(body: MessageBody, reply_id: str, call: CallContext) -> ChatRequest:
    """The request for a message; InvalidRequest names what contradicts itself.

    Where max_tokens is beyond the context, the answer may fill the context, and the stop reason says so
    where it does.
    """
    thinking = body.thinking
    if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens >= body.max_tokens:
        raise InvalidRequest(
            f"thinking.budget_tokens ({thinking.budget_tokens:,}) must be smaller than max_tokens "
            f"({body.max_tokens:,}): the answer comes after the thinking",
            param="thinking",
        )
    names = ("temperature", "top_p", "top_k", "max_tokens")
    sampling: dict[str, Any] = {name: value for name in names if (value := getattr(body, name)) is not None}
    if body.stop_sequences is not None:
        sampling["stop"] = tuple(body.stop_sequences)
    return prompt_request(
        body,
        reply_id,
        call,
        sampling=sampling,
        fit_context=True,
        slo=targets_of(body.slo),
        route=wishes_of(body.route),
        guards=guard_names(body.guard),
        cache=cache_use(body.cache),
    )


def prompt_request(body: PromptBody, reply_id: str, call: CallContext, **generation: Any) -> ChatRequest:
    """A request with the prompt of a body; `generation` are further fields. Warnings go to `call`."""
    turns, tools = Turns(body, call), body.tools or []
    use = tool_use(tools, body.tool_choice)
    if turns.is_continuation:
        _check_continuation(body, tools=use is not None)
    warn_unused(tools, call)
    return ChatRequest(
        id=reply_id,
        model=body.model,
        messages=tuple(turns.messages),
        tools=use,
        reasoning=_reasoning(body, call),
        constraint=_format(body),
        continue_final_message=turns.is_continuation,
        **generation,
    )


def thinking_display(body: PromptBody) -> str | None:
    """How blocks of thinking are to be shown, where there may be some."""
    thinking = body.thinking
    return None if thinking is None or isinstance(thinking, ThinkingDisabled) else thinking.display


def _check_continuation(body: PromptBody, *, tools: bool) -> None:
    """An answer that continues a text is text from its first character."""
    found = {
        "tools": tools,
        "output_config.format": _format(body) is not None,
        "thinking": body.thinking is not None and not isinstance(body.thinking, ThinkingDisabled),
    }
    for name, given in found.items():
        if given:
            raise InvalidRequest(
                f"{name}: the last of messages is the assistant's, and an answer that continues it is "
                "nothing but text: leave one of them out",
                param=name.split(".")[0],
            )
    parts = body.messages[-1].content
    if not (
        parts if isinstance(parts, str) else any(isinstance(part, AnyText) and part.text for part in parts)
    ):
        raise InvalidRequest(
            "messages: the last one is the assistant's and has no text to continue: answer its calls with "
            "tool_result, or leave it out",
            param="messages",
        )


def _format(body: PromptBody) -> Constraint | None:
    wanted = body.output_config.format if body.output_config is not None else None
    return None if wanted is None else schema_constraint(wanted.json_schema, param="output_config")


def _reasoning(body: PromptBody, call: CallContext) -> ReasoningSettings:
    thinking, effort = body.thinking, body.output_config.effort if body.output_config is not None else None
    if effort in ("xhigh", "max"):
        name = REASONING_NAMES["effort"]
        call.warn(name, f"{name} {effort} is taken as high, the highest level that chat templates know")
        effort = "high"
    enabled = None if thinking is None else not isinstance(thinking, ThinkingDisabled)
    if thinking_display(body) == "summarized":
        call.warn("thinking", "thinking.display: thinking is sent whole, the server does not summarize")
    return ReasoningSettings(
        enabled=enabled,
        effort=effort,
        max_tokens=thinking.budget_tokens if isinstance(thinking, ThinkingEnabled) else None,
        names=REASONING_NAMES,
    )
