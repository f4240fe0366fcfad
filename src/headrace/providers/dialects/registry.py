"""The dialects by their names in the settings."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.providers import DialectName
from headrace.providers.dialect import Dialect
from headrace.providers.dialects.openai_chat import OpenAIChat

_DIALECTS: Mapping[str, Dialect] = {"openai_chat": OpenAIChat()}


def dialect_of(name: DialectName) -> Dialect:
    """The dialect of that name."""
    return _DIALECTS[name]
