"""How much a model should reason, as variables of its chat template and a budget of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.chat.prompt import CONTINUATION, ChatPrompt
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest, ReasoningSettings
from headrace.sampling.reasoning_budget import ReasoningBudget
from headrace.tokenization.tokenizer import Tokenizer

SWITCHES = ("enable_thinking", "thinking")
"""Template variables that switch reasoning on or off."""
EFFORT = "reasoning_effort"
"""The template variable of the level."""
UNREAD = "has no effect: this model's chat template does not read it"


def template_variables(
    request: ChatRequest, template: ChatTemplate, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Variables for the template: those given by name go before the reasoning settings, and these before
    `defaults`. Only what the template reads is taken of `defaults`."""
    variables, settings = dict(request.template_variables or {}), request.reasoning
    switches = [name for name in SWITCHES if name in template.reads]
    effort, enabled = settings.effort, settings.enabled
    if effort is not None and EFFORT in template.reads:
        variables.setdefault(EFFORT, effort)
    elif effort == "none":
        enabled = False if enabled is None else enabled
    if enabled is not None:
        for name in switches:
            variables.setdefault(name, enabled)
    return {name: value for name, value in defaults.items() if name in template.reads} | variables


def warn_unread(request: ChatRequest, template: ChatTemplate, call: CallContext) -> None:
    """Warn of variables and of an effort that the template does not read. A required effort is an error."""
    settings: ReasoningSettings = request.reasoning
    given: Mapping[str, Any] = request.template_variables or {}
    prefix = settings.name("template_variables")
    names = [f"{prefix}.{name}" for name in given if name not in template.reads]
    readable = {EFFORT, *(SWITCHES if settings.effort == "none" else ())}
    if settings.effort is not None and not template.reads & readable:
        names.append(settings.name("effort"))
    for name in names:
        call.warn(name, f"{name} {UNREAD}")


def reasoning_budget(
    settings: ReasoningSettings, prompt: ChatPrompt, tokenizer: Tokenizer, template: ChatTemplate
) -> ReasoningBudget | None:
    """Bounds on the tokens of reasoning. A model without a switch is switched off by a budget of 0."""
    budget, least = settings.max_tokens, settings.min_tokens
    reasons = prompt.syntax.thinking is not None and not prompt.is_continuation
    if settings.continuation is not None and not least:
        name = settings.name("continuation")
        raise InvalidRequest(f"{name} needs {settings.name('min_tokens')}: send both", param=name)
    if settings.enabled is False and reasons and not template.reads & set(SWITCHES):
        budget = 0
    if budget is None and not least:
        return None
    if not reasons and not settings.required:
        return None
    return prompt.thinking(
        tokenizer,
        budget,
        param=settings.name("min_tokens" if budget is None else "max_tokens"),
        min_tokens=least,
        continuation=settings.continuation or CONTINUATION,
    )


def check_enabled(
    settings: ReasoningSettings, prompt: ChatPrompt, template: ChatTemplate, model: str, call: CallContext
) -> None:
    """Refuse, or warn of, reasoning that was asked for and that the model cannot do."""
    name = settings.name("enabled")
    if not settings.enabled:
        return
    if prompt.syntax.thinking is None:
        if settings.required:
            raise InvalidRequest(f"{model} does not support thinking: leave {name} out", param=name)
        call.warn(name, f"{name} has no effect: this model does not reason")
    elif settings.required and settings.effort is not None and EFFORT not in template.reads:
        name = settings.name("effort")
        raise InvalidRequest(f"{model} thinks without levels: send {name}: true or false", param=name)
