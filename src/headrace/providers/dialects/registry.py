"""The dialects by their names in the settings."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.providers import DialectName
from headrace.providers.dialect import Dialect
from headrace.providers.dialects.anthropic import Anthropic
from headrace.providers.dialects.google import Google
from headrace.providers.dialects.openai_chat import OpenAIChat
from headrace.providers.dialects.openai_responses import OpenAIResponses

_DIALECTS: Mapping[DialectName, Dialect] = {
    "anthropic": Anthropic(),
    "google": Google(),
    "openai_chat": OpenAIChat(),
    "openai_responses": OpenAIResponses(),
}


def dialect_of(name: DialectName) -> Dialect:
    """The dialect of that name."""
    return _DIALECTS[name]
