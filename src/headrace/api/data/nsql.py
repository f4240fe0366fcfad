"""POST /v1/nsql: questions in words over the datasets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.data.sql import SqlColumn
from headrace.api.http.body import RequestBody, Values, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service, new_id
from headrace.data.engine import DataEngine
from headrace.data.job import Format, SqlAnswer
from headrace.data.nsql import NsqlAnswer, NsqlAttempt, NsqlQuestion, answer_question, columns_of
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest
from headrace.isolation.child import WorkStop

SPICE = "application/vnd.spiceai.nsql.v1+json"
_ROWS = {"type": "array", "items": {"type": "object"}}
_Name = Annotated[str, Meta(min_length=1, max_length=63)]


class NsqlBody(RequestBody, kw_only=True):
    """A question, in Spice's fields; `n` statements are compared by what they give."""

    no_effect: ClassVar[Mapping[str, Values]] = {"sample_data_enabled": (False,)}
    unsupported: ClassVar[Mapping[str, Values]] = {"stream": (False,)}
    query: Annotated[str, Meta(min_length=1, max_length=10_000)]
    model: str | None = None
    datasets: Annotated[list[_Name], Meta(max_length=32)] = []  # noqa: RUF012
    n: Annotated[int, Meta(ge=1, le=16)] = 1
    max_rows: Annotated[int, Meta(ge=1, le=2**31)] | None = None


class NsqlReply(Struct, frozen=True, kw_only=True):
    """The statement and its rows in Spice's form. `verified`: it was planned before it ran; `agreement` of
    `attempts` gave the same."""

    row_count: int
    schema: list[SqlColumn]
    data: Annotated[Raw, Meta(extra_json_schema=_ROWS)]
    sql: str
    execution_time_ms: float
    attempts: list[NsqlAttempt]
    agreement: int
    verified: Literal[True] = True


class KeyStatements:
    """SQL as the key of a call may run it; see `data.nsql.Statements`."""

    def __init__(self, service: Service, call: CallContext) -> None:
        self._statements, self._call = service.statements, call
        self._key = call.account.name or None

    async def tables(self, names: Sequence[str]) -> dict[str, list[str]]:
        """See `Statements.tables`."""
        engine = await self._statements.engine()
        role = engine.limits.of(self._key).role
        visible = [one.name for one in engine.catalogue if engine.catalogue.visible(one, role)]
        unknown = [name for name in names if name not in visible]
        if unknown:
            raise InvalidRequest(
                f"no dataset is named {unknown[0]!r}: there are {', '.join(visible)}", param="datasets"
            )
        return await columns_of(
            self,
            names or visible,
            were_named=bool(names),
            warn=lambda said: self._call.warn("datasets", said),
        )

    async def run(self, sql: str, *, rows: int | None = None, explain: bool = False) -> SqlAnswer:
        """See `Statements.run`."""

        def work(engine: DataEngine, stop: WorkStop) -> SqlAnswer:
            kind: Format = "json"
            return engine.sql(
                sql, format=kind, key=self._key, rows=rows, explain=explain, stop=stop, call=self._call
            )

        return await self._statements.run(work)


@Endpoint(
    "POST",
    "/v1/nsql",
    body=NsqlBody,
    content=(
        Content("application/json", _ROWS),
        Content(SPICE, {"$ref": "#/components/schemas/NsqlReply"}, bodies=(NsqlReply,)),
        Content("application/sql", {"type": "string"}),
    ),
    errors={
        402: "A budget is used up.",
        501: "There are no datasets, or headrace[data] is not installed.",
        502: "A dataset cannot be opened, or a remote model has failed.",
    },
)
async def ask_sql(http: HttpRequest) -> Response:
    """The rows that answer a question, in the form that Accept names; as application/sql the statement
    alone."""
    began = time.perf_counter()
    kind = _accepted(http)
    service, call = get_service(http), call_of(http)
    body = await read_checked(NsqlBody, http)
    found: NsqlAnswer = await done(http, _answered(body, service, call))
    if kind == "application/sql":
        return Response(found.sql + "\n", media_type=kind)
    if kind == "application/json":
        return Response(found.answer.body, media_type=kind)
    reply = NsqlReply(
        row_count=found.answer.rows,
        schema=[SqlColumn(column.name, column.type) for column in found.answer.columns],
        data=Raw(found.answer.body),
        sql=found.sql,
        execution_time_ms=round((time.perf_counter() - began) * 1000, 3),
        attempts=list(found.attempts),
        agreement=found.agreement,
    )
    return Response(msgspec.json.encode(reply), media_type=kind)


async def _answered(body: NsqlBody, service: Service, call: HttpCall) -> NsqlAnswer:
    is_local = service.remote.find(body.model) is None
    question = NsqlQuestion(
        text=body.query,
        request=ChatRequest(id=new_id("nsql"), model=body.model, messages=()),
        datasets=tuple(body.datasets),
        candidates=body.n,
        rows=body.max_rows,
        context_length=(await service.use(call, body.model)).context_length if is_local else None,
    )
    return await answer_question(question, KeyStatements(service, call), service.handler, call)


def _accepted(http: HttpRequest) -> str:
    kinds = ("application/json", SPICE, "application/sql")
    for part in http.headers.get("accept", "*/*").split(","):
        kind = part.partition(";")[0].strip().lower()
        if kind in kinds:
            return kind
        if kind in ("*/*", "application/*", ""):
            return "application/json"
    raise InvalidRequest(f"Accept names none of {', '.join(kinds)}", param="Accept")
