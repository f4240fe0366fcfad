"""`think`: whether a model reasons before it answers, and what its template is told about it."""

from __future__ import annotations

from typing import Any

from headrace.api.openai.schema import ParameterWarning
from headrace.chat.output_parser import output_syntax
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.chat.tool_formats.gpt_oss import Harmony
from headrace.errors import InvalidRequest

LEVELS = ("low", "medium", "high")
_SWITCHES = ("enable_thinking", "thinking")
_LEVEL = "reasoning_effort"


def thinks(template: ChatTemplate | None) -> bool:
    """Whether the template's model reasons in a way that is known here."""
    if template is None:
        return False
    syntax = output_syntax(template.source)
    return syntax.reasoning is not None or isinstance(syntax.family, Harmony)


def think_variables(
    think: bool | str | None, template: ChatTemplate, model: str
) -> tuple[dict[str, Any], list[ParameterWarning]]:
    """Variables for the template; InvalidRequest where the model cannot do what is asked for."""
    if think is None or (think is False and not thinks(template)):
        return {}, []
    if not thinks(template):
        raise InvalidRequest(f"{model} does not support thinking: leave think out", param="think")
    switches = [name for name in _SWITCHES if name in template.reads]
    if isinstance(think, bool):
        if think or switches:
            return dict.fromkeys(switches, think), []
        message = "think has no effect: this model's chat template has no switch, it always thinks"
        return {}, [ParameterWarning("think", message)]
    if think not in LEVELS:
        raise InvalidRequest(
            f"think is {think[:40]!r}, it must be true, false or one of {', '.join(LEVELS)}", param="think"
        )
    if _LEVEL not in template.reads:
        raise InvalidRequest(f"{model} thinks without levels: send think: true or false", param="think")
    return {_LEVEL: think, **dict.fromkeys(switches, True)}, []
