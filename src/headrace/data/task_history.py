"""The relation headrace.task_history: what requests did, a row for each part of them, in Spice's columns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from headrace.data.guard import qualified_name
from headrace.storage.request_log import LoggedRequest
from headrace.telemetry.explain import ExplainNode
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
_SOURCE = "__task_history"


def mentions_history(sql: str) -> bool:
    """Whether a statement may read the relation: the guard says whether it does."""
    return TABLE in sql.lower()


def open_history(connection: Any, lines: Sequence[LoggedRequest]) -> None:
    """Make the relation readable in a connection of DuckDB."""
    arrow: Any = importlib.import_module("pyarrow")
    text, labels = arrow.string(), arrow.map_(arrow.string(), arrow.string())
    moment = arrow.timestamp("us", "UTC")
    schema = arrow.schema(
        [
            *((name, text) for name in ("trace_id", "span_id", "parent_span_id", "task")),
            *((name, text) for name in ("input", "captured_output")),
            *(("start_time", moment), ("end_time", moment), ("execution_duration_ms", arrow.float64())),
            *(("error_message", text), ("labels", labels)),
        ]
    )
    rows = [row for line in lines for row in _rows(line)]
    arrays = [arrow.array([row[place] for row in rows], one.type) for place, one in enumerate(schema)]
    connection.register(_SOURCE, arrow.table(arrays, schema=schema))
    for one in SCHEMAS:
        connection.execute(f"CREATE SCHEMA {one}")
        connection.execute(f"CREATE VIEW {one}.{TABLE} AS SELECT * FROM {_SOURCE}")


def _rows(line: LoggedRequest) -> Iterator[tuple[Any, ...]]:
    """The row of a request, and those of its parts."""
    tree = ExplainNode("request", line.total_s)
    if line.explain is not None:
        tree = msgspec.json.decode(line.explain, type=ExplainNode)
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
        *(own_id, str(detail.get("parent_span_id", "")), operation_of(line.path), 0.0, line.total_s),
        detail=about if line.body is None else {**about, "input": line.body.decode("utf-8", "replace")},
        error=line.error or "",
    )
    yield _row(line, request)
    for part in task_spans(tree, own_id):
        yield _row(line, part)


def _row(line: LoggedRequest, part: TaskSpan) -> tuple[Any, ...]:
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
    return (
        *(line.trace_id, part.span_id, part.parent_id or None, task),
        *(part.detail.get(name) for name in _CONTENT),
        *(start_us, end_us, (part.end_s - part.start_s) * 1000),
        *(part.error or None, list(labels.items())),
    )
