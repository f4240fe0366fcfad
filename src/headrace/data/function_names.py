"""The functions of SQL that models answer: their names, and those of Snowflake and Spice."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class FunctionName(Struct, frozen=True):
    """What a name stands for: an operator, and options that its first arguments are. One that `aggregates`
    reads the texts of a group, in place of its first argument."""

    operator: str
    leading: tuple[str, ...] = ()
    aggregates: bool = False


FUNCTIONS: Mapping[str, FunctionName] = {
    "ai": FunctionName("ai"),
    "ai_complete": FunctionName("ai", ("model",)),
    "ai_agg": FunctionName("ai_agg", aggregates=True),
    "summarize": FunctionName("summarize", aggregates=True),
    "ai_summarize": FunctionName("summarize", aggregates=True),
    "ai_summarize_agg": FunctionName("summarize", aggregates=True),
    "ai_filter": FunctionName("ai_filter"),
    "ai_join": FunctionName("ai_join"),
    "ai_probability": FunctionName("ai_probability"),
    "classify": FunctionName("classify"),
    "ai_classify": FunctionName("classify"),
    "ai_extract": FunctionName("extract"),
    "embed": FunctionName("embed"),
    "ai_embed": FunctionName("embed", ("model",)),
    "similarity": FunctionName("similarity"),
    "ai_similarity": FunctionName("similarity"),
    "redact": FunctionName("redact"),
    "ai_redact": FunctionName("redact"),
    "rerank": FunctionName("rerank"),
    "ai_rerank": FunctionName("rerank"),
}
"""By name, in small letters."""
