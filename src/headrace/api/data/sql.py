"""POST /v1/sql and /v1/sql/explain, GET /v1/datasets."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, checked_body
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.http.request_body import read_body
from headrace.api.service import get_service
from headrace.api.statements import ServedModels
from headrace.config.datasets import read_datasets
from headrace.data.engine import AiWishes, DataEngine
from headrace.data.job import CallCost, Format, SqlAnswer
from headrace.data.task_history import mentions_history
from headrace.errors import InvalidRequest
from headrace.isolation.child import WorkStop

SPICE = "application/vnd.spiceai.sql.v1+json"
ARROW = "application/vnd.apache.arrow.stream"
FORMATS: dict[str, Format] = {
    "application/json": "json",
    SPICE: "json",
    "text/csv": "csv",
    ARROW: "arrow",
}
USAGE_HEADER = "x-headrace-ai"
_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_TEXTS = ("text/plain", "application/sql")
_ERRORS = {
    501: "There are no datasets, or headrace[data] is not installed.",
    502: "A dataset cannot be opened.",
}
_ROWS = {"type": "array", "items": {"type": "object"}}


class SqlBody(RequestBody, kw_only=True):
    """A statement as JSON. It may also be the body itself, as text/plain. Of models it takes at most
    `max_tokens`, for `max_ai_rows` rows of arguments, and time of this machine for `max_cost` dollars. With
    `describe` the reply has the columns, and no rows: as JSON, a name and a type of each."""

    sql: Annotated[str, Meta(min_length=1)]
    parameters: Annotated[list[str | _Integer | float | bool | None], Meta(max_length=1000)] = []  # noqa: RUF012
    max_rows: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    describe: bool = False
    max_tokens: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    max_ai_rows: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    max_cost: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class SqlColumn(Struct, frozen=True):
    """A column of a result."""

    name: str
    type: str


class SqlResult(Struct, frozen=True):
    """A result in Spice's form; `data` are its rows."""

    row_count: int
    schema: list[SqlColumn]
    data: Annotated[Raw, Meta(extra_json_schema=_ROWS)]
    execution_time_ms: float


class SqlPlan(Struct, frozen=True):
    """How a statement would be run, what it reads, and what its calls would take of `models`."""

    plan: str
    datasets: list[str]
    models: list[CallCost] = []


class DatasetEntry(Struct, frozen=True, kw_only=True):
    """A dataset that the key may read, in Spice's fields."""

    name: str
    kind: Annotated[str, Meta(description="Kind of its source.")] = msgspec.field(name="from")
    replication_enabled: bool = False
    acceleration_enabled: bool
    status: Literal["ready", "error"]
    error: str | None = None


_DATASETS = Content(
    "application/json",
    {"type": "array", "items": {"$ref": "#/components/schemas/DatasetEntry"}},
    bodies=(DatasetEntry,),
)


@Endpoint(
    "POST",
    "/v1/sql",
    body=SqlBody,
    reply=SqlResult,
    texts=_TEXTS,
    content=(
        Content("application/json", _ROWS),
        Content(SPICE, {"$ref": "#/components/schemas/SqlResult"}),
        Content("text/csv", {"type": "string"}),
        Content(ARROW, {"type": "string", "format": "binary"}),
    ),
    errors=_ERRORS,
)
async def run_sql(http: HttpRequest) -> Response:
    """The rows of one SELECT over the datasets, in the form that Accept names: rows as JSON where it names
    none."""
    began = time.perf_counter()
    kind = _accepted(http)
    answer, is_described = await _answer(http, FORMATS[kind])
    headers = _headers(answer)
    if is_described and FORMATS[kind] == "json" and kind != SPICE:
        columns = [SqlColumn(column.name, column.type) for column in answer.columns]
        return Response(msgspec.json.encode(columns), media_type=kind, headers=headers)
    if kind != SPICE:
        return Response(answer.body, media_type=kind, headers=headers)
    columns = [SqlColumn(column.name, column.type) for column in answer.columns]
    took_ms = round((time.perf_counter() - began) * 1000, 3)
    body = SqlResult(answer.rows, columns, Raw(answer.body), took_ms)
    return Response(msgspec.json.encode(body), media_type=SPICE, headers=headers)


@Endpoint("POST", "/v1/sql/explain", body=SqlBody, texts=_TEXTS, reply=SqlPlan, errors=_ERRORS)
async def explain_sql(http: HttpRequest) -> Response:
    """The plan of a statement, which does not run."""
    answer, _ = await _answer(http, "json", explain=True)
    rows: list[dict[str, Any]] = msgspec.json.decode(answer.body)
    plan = "\n".join(str(row["explain_value"]) for row in rows)
    return json_response(SqlPlan(plan, list(answer.datasets), list(answer.costs)))


@Endpoint("GET", "/v1/datasets", content=(_DATASETS,), errors={501: "headrace[data] is not installed."})
async def list_datasets(http: HttpRequest) -> Response:
    """The datasets that the key may read. Those without a copy are opened to see whether they answer."""
    service, call = get_service(http), call_of(http)
    if not read_datasets(service.settings.datasets):
        return json_response(Raw(b"[]"))
    engine = await service.statements.engine()
    limits = engine.limits.of(call.account.name or None)
    errors = await service.statements.in_thread(lambda: engine.errors(limits.role))
    found = [
        DatasetEntry(
            name=dataset.name,
            kind=dataset.kind,
            acceleration_enabled=dataset.copy is not None,
            status="error" if dataset.name in errors else "ready",
            error=errors.get(dataset.name),
        )
        for dataset in engine.catalogue
        if engine.catalogue.visible(dataset, limits.role)
    ]
    return json_response(Raw(msgspec.json.encode(found)))


async def _answer(http: HttpRequest, format: Format, *, explain: bool = False) -> tuple[SqlAnswer, bool]:
    """The answer, and whether it has columns alone."""
    service, call = get_service(http), call_of(http)
    data = await read_body(http)
    media = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media in _TEXTS:
        body = SqlBody(sql=_text(data))
    else:
        body = checked_body(SqlBody, data, call)

    loop = asyncio.get_running_loop()
    places, remote = service.statements.places, service.remote.routing
    models = ServedModels(service.runner, call.account, loop, places, remote)
    wishes = AiWishes(
        max_tokens=body.max_tokens,
        max_ai_rows=body.max_ai_rows,
        max_cost=body.max_cost,
        usd_per_hour=service.settings.node_usd_per_hour,
    )

    history = await service.requests.history(call.account) if mentions_history(body.sql) else None

    def run(engine: DataEngine, stop: WorkStop) -> SqlAnswer:
        return engine.sql(
            body.sql,
            body.parameters,
            format=format,
            key=call.account.name or None,
            rows=body.max_rows,
            explain=explain,
            describe=body.describe and not explain,
            stop=stop,
            models=models,
            wishes=wishes,
            call=call,
            history=None if history is None else history.lines,
            indexes=service.indexes,
        )

    answer = await done(http, service.statements.run(run, needs_datasets=history is None))
    for warning in answer.warnings:
        call.warn("sql", warning)
    if history is not None and history.left_out:
        call.warn("sql", f"task_history: the oldest {history.left_out:,} requests are left out")
    return answer, body.describe and not explain


def _headers(answer: SqlAnswer) -> dict[str, str]:
    """What models have done for the statement, in the reply's headers: its body is rows alone."""
    if answer.usage is None:
        return {}
    return {USAGE_HEADER: msgspec.json.encode(answer.usage).decode()}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the statement is no UTF-8", param="sql") from None


def _accepted(http: HttpRequest) -> str:
    for part in http.headers.get("accept", "*/*").split(","):
        kind = part.partition(";")[0].strip().lower()
        if kind in FORMATS:
            return kind
        if kind in ("*/*", "application/*", ""):
            return "application/json"
    raise InvalidRequest(f"Accept names none of {', '.join(FORMATS)}", param="Accept")
