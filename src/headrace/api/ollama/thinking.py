"""`think`: whether a model reasons before it answers, and how much."""

from __future__ import annotations

from headrace.chat.output_parser import output_syntax
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.chat.tool_formats.gpt_oss import Harmony
from headrace.errors import InvalidRequest
from headrace.inference.requests import ReasoningSettings

LEVELS = ("low", "medium", "high")
NAMES = {"enabled": "think", "effort": "think"}


def thinks(template: ChatTemplate | None) -> bool:
    """Whether the template's model reasons in a way that is known here."""
    if template is None:
        return False
    syntax = output_syntax(template.source)
    return syntax.reasoning is not None or isinstance(syntax.family, Harmony)


def think_settings(think: bool | str | None) -> ReasoningSettings:
    """What `think` asks for. InvalidRequest for a level that there is not."""
    if think is None or isinstance(think, bool):
        return ReasoningSettings(enabled=think, required=True, names=NAMES)
    if think not in LEVELS:
        raise InvalidRequest(
            f"think is {think[:40]!r}, it must be true, false or one of {', '.join(LEVELS)}", param="think"
        )
    return ReasoningSettings(enabled=True, effort=think, required=True, names=NAMES)
