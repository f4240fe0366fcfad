"""What the conventions call a part of a call: tools, statements, searches, attempts at other models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace.telemetry.otel import names
from headrace.telemetry.task_spans import TaskSpan

Detail = Mapping[str, Any]
_VALUES = (str, int, float)


class Described(Struct, frozen=True):
    """The name and the attributes of a span."""

    name: str
    attributes: Mapping[str, Any]


def described(part: TaskSpan) -> Described:
    """The span of a part. What was said is in none."""
    found = {f"headrace.{key}": value for key, value in part.detail.items() if isinstance(value, _VALUES)}
    about, name = _KINDS.get(part.name), part.name
    if about is not None:
        name, known = about(part.detail)
        found |= {key: value for key, value in known.items() if isinstance(value, _VALUES)}
    if part.error:
        found[names.ERROR_TYPE] = part.error
    return Described(name, found)


def _tool(detail: Detail) -> tuple[str, dict[str, Any]]:
    tool = detail.get("tool", "")
    kind = "extension" if detail.get("server") else "datastore"
    return f"{names.EXECUTE_TOOL} {tool}", {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: tool,
        names.TOOL_TYPE: kind if tool not in ("chat", "models") else "function",
    }


def _sql(detail: Detail) -> tuple[str, dict[str, Any]]:
    datasets = detail.get("datasets", "")
    summary = f"SELECT {datasets}".strip()
    found = {
        names.DB_SYSTEM: "duckdb",
        names.DB_OPERATION: "SELECT",
        names.DB_SUMMARY: summary,
        names.DB_ROWS: detail.get("rows"),
    }
    if datasets and "," not in datasets:
        found[names.DB_COLLECTION] = datasets
    return summary, found


def _search(detail: Detail) -> tuple[str, dict[str, Any]]:
    indexes = detail.get("indexes", "")
    return f"{names.RETRIEVAL} {indexes}".strip(), {
        names.OPERATION: names.RETRIEVAL,
        names.DATA_SOURCE: indexes,
    }


def _model_call(detail: Detail) -> tuple[str, dict[str, Any]]:
    return f"chat {detail.get('model', '')}".strip(), _usage(detail) | {
        names.OPERATION: "chat",
        names.PROVIDER: names.HEADRACE,
        names.REQUEST_MODEL: detail.get("model"),
    }


def _attempt(detail: Detail) -> tuple[str, dict[str, Any]]:
    model = detail.get("model", "")
    return f"chat {model}".strip(), _usage(detail) | {
        names.OPERATION: "chat",
        names.PROVIDER: detail.get("provider"),
        names.REQUEST_MODEL: model,
    }


def _usage(detail: Detail) -> dict[str, Any]:
    return {
        names.INPUT_TOKENS: detail.get("prompt_tokens"),
        names.OUTPUT_TOKENS: detail.get("output_tokens"),
    }


_KINDS = {"tool": _tool, "sql": _sql, "search": _search, "model call": _model_call, "attempt": _attempt}
