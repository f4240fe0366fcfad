"""From a body to the conversation, its prompt and the engine request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.api.anthropic.body import MessageBody, PromptBody, ThinkingDisabled, ThinkingEnabled
from headrace.api.anthropic.messages_in import Turns
from headrace.api.anthropic.tools import idle_tool_fields, tool_use
from headrace.api.openai.parameters import check_characters
from headrace.api.openai.schema import ParameterWarning
from headrace.chat.prompt import STRICT_UNAVAILABLE, ChatPrompt, prepare
from headrace.chat.templates.chat_template import missing_template
from headrace.engine.request import EngineRequest
from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, schema_constraint
from headrace.sampling.reasoning_budget import ReasoningBudget

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_SWITCHES = frozenset({"enable_thinking", "thinking"})  # what templates call it


class Prompt(Struct, frozen=True):
    """A conversation with its tokens, and warnings for what of the body had no effect."""

    conversation: ChatPrompt
    tokens: tuple[int, ...]
    warnings: list[ParameterWarning] = field(default_factory=list[ParameterWarning])


def make_prompt(body: PromptBody, model: LoadedModel, tool_format: str | None) -> Prompt:
    """Messages and tools made ready for `model`. Renders and tokenizes: not for the event loop."""
    if model.template is None:
        raise missing_template(model.name)
    turns = Turns(body)
    use = tool_use(body.tools or [], body.tool_choice)
    if turns.is_continuation:
        _check_continuation(body, tools=use is not None)
    conversation = prepare(
        model.template,
        turns.messages,
        use=use,
        family=tool_format,
        add_generation_prompt=not turns.is_continuation,
        continue_final_message=turns.is_continuation,
        variables=_variables(body, model.template.reads),
    )
    check_characters(conversation.text, model.context_length, "messages")
    warnings = [
        *turns.warnings,
        *idle_tool_fields(body.tools or []),
        *_idle_thinking(body, conversation, model.template.reads),
    ]
    if conversation.strict_unavailable:
        warnings.append(ParameterWarning("tools", STRICT_UNAVAILABLE))
    # The template writes the special tokens, so none are added.
    return Prompt(conversation, tuple(model.tokenizer.encode(conversation.text, add_special=False)), warnings)


def make_request(
    body: MessageBody, prompt: Prompt, model: LoadedModel, request_id: str, cache_salt: str
) -> EngineRequest:
    """The engine request that a body asks for; raises InvalidRequest naming what cannot be honored.

    A max_tokens beyond the context is none: the answer may fill the context, and says so where it does.
    """
    given: dict[str, Any] = {
        name: value
        for name in ("temperature", "top_p", "top_k")
        if (value := getattr(body, name)) is not None
    }
    beyond = len(prompt.tokens) + body.max_tokens > model.engine.limits.context_length
    given["max_tokens"] = None if beyond else body.max_tokens
    if body.stop_sequences is not None:
        given["stop"] = tuple(body.stop_sequences)
    conversation, tokenizer = prompt.conversation, model.tokenizer
    return EngineRequest(
        params=replace(model.defaults, **given),
        prompt=prompt.tokens,
        request_id=request_id,
        cache_salt=cache_salt,
        visible_token_ids=conversation.visible_token_ids(tokenizer),
        constraint=conversation.constraint(tokenizer, _format(body)),
        thinking=_thinking(body, conversation, model),
    )


def _check_continuation(body: PromptBody, *, tools: bool) -> None:
    """An answer that goes on with a text is text from its first character."""
    found = {
        "tools": tools,
        "output_config.format": _format(body) is not None,
        "thinking": body.thinking is not None and not isinstance(body.thinking, ThinkingDisabled),
    }
    for name, given in found.items():
        if given:
            raise InvalidRequest(
                f"{name}: the last of messages is the assistant's, and an answer that goes on with it is "
                "nothing but text: leave one of them out",
                param=name.split(".")[0],
            )
    parts = body.messages[-1].content
    if not any(part.type == "text" and part.text for part in parts):
        raise InvalidRequest(
            "messages: the last one is the assistant's and has no text to go on with: answer its calls with "
            "tool_result, or leave it out",
            param="messages",
        )


def _format(body: PromptBody) -> Constraint | None:
    wanted = body.output_config.format if body.output_config is not None else None
    return None if wanted is None else schema_constraint(wanted.json_schema, param="output_config")


def _effort(body: PromptBody) -> str | None:
    return body.output_config.effort if body.output_config is not None else None


def _variables(body: PromptBody, reads: frozenset[str]) -> dict[str, Any]:
    """What the template is given besides the messages."""
    given: dict[str, Any] = {}
    if body.thinking is not None:
        given |= dict.fromkeys(_SWITCHES & reads, not isinstance(body.thinking, ThinkingDisabled))
    effort = _effort(body)
    if effort is not None and "reasoning_effort" in reads:
        given["reasoning_effort"] = "high" if effort in ("xhigh", "max") else effort
    return given


def _idle_thinking(
    body: PromptBody, conversation: ChatPrompt, reads: frozenset[str]
) -> list[ParameterWarning]:
    found: list[ParameterWarning] = []
    thinking, effort = body.thinking, _effort(body)
    if thinking is not None and not isinstance(thinking, ThinkingDisabled):
        if conversation.syntax.thinking is None:
            found.append(ParameterWarning("thinking", "thinking has no effect: this model does not reason"))
        elif thinking.display == "summarized":
            message = "thinking.display: thinking is sent whole, nothing here summarizes"
            found.append(ParameterWarning("thinking", message))
    if effort is not None and "reasoning_effort" not in reads:
        message = "output_config.effort has no effect: this model's chat template does not read it"
        found.append(ParameterWarning("output_config", message))
    elif effort in ("xhigh", "max"):
        message = f"output_config.effort {effort} is taken as high, the most that chat templates know"
        found.append(ParameterWarning("output_config", message))
    return found


def _thinking(body: MessageBody, conversation: ChatPrompt, model: LoadedModel) -> ReasoningBudget | None:
    """A bound on the reasoning: the budget; or none at all, where the template has no switch for that."""
    thinking = body.thinking
    if isinstance(thinking, ThinkingEnabled):
        budget = thinking.budget_tokens
        if budget >= body.max_tokens:
            raise InvalidRequest(
                f"thinking.budget_tokens ({budget:,}) must be smaller than max_tokens ({body.max_tokens:,}): "
                "the answer comes after the thinking",
                param="thinking",
            )
    elif isinstance(thinking, ThinkingDisabled) and model.template and not _SWITCHES & model.template.reads:
        budget = 0
    else:
        return None
    if conversation.syntax.thinking is None or conversation.is_continuation:
        return None
    return conversation.thinking(model.tokenizer, budget, param="thinking")
