"""The relation headrace.task_history: what requests did, a row for each part of them, in Spice's columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from headrace.data.guard import qualified_name
from headrace.data.source import literal
from headrace.storage.request_log import LoggedRequest
from headrace.struct_types import thread_safe
from headrace.telemetry.explain_node import ExplainNode
from headrace.telemetry.otel.names import operation_of
from headrace.telemetry.task_spans import TaskSpan, task_spans

TABLE = "task_history"
SCHEMAS = ("headrace", "runtime")
"""The second one is Spice's."""
NAMES: Mapping[str, str] = {qualified_name(schema, TABLE): f"{schema}.{TABLE}" for schema in SCHEMAS}
"""As the guard knows them, with what they are called."""
NO_SPAN = "0" * 16
_TASKS: Mapping[str, str] = {
    "chat": "ai_chat",
    "text_completion": "ai_completion",
    "embeddings": "text_embed",
    "sql": "sql_query",
    "engine": "ai_completion",
    "model call": "ai_chat",
}
"""What Spice calls them; others have our own names."""
_CONTENT = ("input", "output")
_COLUMNS = {
    **dict.fromkeys(("trace_id", "span_id", "parent_span_id", "task"), "VARCHAR"),
    "input": "VARCHAR",
    "captured_output": "VARCHAR",
    "start_time": "BIGINT",
    "end_time": "BIGINT",
    "execution_duration_ms": "DOUBLE",
    "error_message": "VARCHAR",
    "labels": "MAP(VARCHAR, VARCHAR)",
}
"""With their types as they are given: times are microseconds."""
_SHOWN = {name: f"make_timestamptz(r.{name})" for name in ("start_time", "end_time")}


def mentions_history(sql: str) -> bool:
    """Whether a statement may read the relation: the guard says whether it does."""
    return TABLE in sql.lower()


def open_history(connection: Any, lines: Sequence[LoggedRequest]) -> None:
    """Make the relation readable in a connection of DuckDB."""
    rows = msgspec.json.encode([row for line in lines for row in _rows(line)]).decode()
    columns = ", ".join(_SHOWN.get(name, f"r.{name}") + f" AS {name}" for name in _COLUMNS)
    shape = msgspec.json.encode([_COLUMNS]).decode()
    relation = f"(SELECT unnest(from_json($1, {literal(shape)})) AS r)"
    first, *others = SCHEMAS
    connection.execute(f"CREATE SCHEMA {first}")
    connection.execute(f"CREATE TABLE {first}.{TABLE} AS SELECT {columns} FROM {relation}", [rows])
    for other in others:
        connection.execute(f"CREATE SCHEMA {other}")
        connection.execute(f"CREATE VIEW {other}.{TABLE} AS SELECT * FROM {first}.{TABLE}")


def _rows(line: LoggedRequest) -> Iterator[dict[str, Any]]:
    """The row of a request, and those of its parts."""
    tree = ExplainNode("request", line.total_s)
    if line.explain is not None:
        tree = msgspec.json.decode(line.explain, type=thread_safe(ExplainNode))
    detail = {} if tree.detail is UNSET else dict(tree.detail)
    own_id = tree.span_id or NO_SPAN
    about = {
        "method": line.method,
        "path": line.path,
        "status": line.status,
        "request_id": line.id,
        "model": line.model,
        "key": line.key_name,
        "prompt_tokens": line.prompt_tokens,
        "cached_tokens": line.cached_tokens,
        "output_tokens": line.completion_tokens,
    }
    request = TaskSpan(
        *(own_id, str(detail.get("parent_span_id", "")), operation_of(line.path, line.status)),
        *(0.0, line.total_s),
        detail=about if line.body is None else {**about, "input": line.body.decode("utf-8", "replace")},
        error=line.error or "",
    )
    yield _row(line, request)
    for part in task_spans(tree, own_id):
        yield _row(line, part)


def _row(line: LoggedRequest, part: TaskSpan) -> dict[str, Any]:
    start_us = int((line.arrived_s + part.start_s) * 1e6)
    end_us = int((line.arrived_s + part.end_s) * 1e6)
    labels = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in part.detail.items()
        if value is not None and key not in _CONTENT
    }
    task = _TASKS.get(part.name, part.name)
    if part.name == "tool":
        task = f"tool_use::{part.detail.get('tool')}"
    values = (
        *(line.trace_id, part.span_id, part.parent_id or None, task),
        *(part.detail.get(name) for name in _CONTENT),
        *(start_us, end_us, (part.end_s - part.start_s) * 1000),
        *(part.error or None, labels),
    )
    return dict(zip(_COLUMNS, values, strict=True))
