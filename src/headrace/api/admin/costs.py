"""GET /v1/organization/costs: what requests cost by day, in the shape of OpenAI's report."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, ClassVar, Literal, cast

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.query import Query, page_size, read_query
from headrace.api.service import get_service
from headrace.economy.entries import day_of
from headrace.economy.money import usd_of
from headrace.errors import InvalidRequest
from headrace.storage.sql_store import SqlStore

DAY_S = 86_400
MAX_BUCKETS = 180
LAST_S = 253_402_300_799  # the year 9999
GroupBy = Literal["project_id", "line_item", "api_key_id"]
_COLUMNS: dict[GroupBy, str] = {
    "project_id": "one.route",
    "api_key_id": "one.key_name",
    "line_item": "(CASE one.provider WHEN '' THEN 'local' ELSE one.provider END) "
    "|| '/' || one.model || ', ' || posting.class",
}


class CostAmount(Struct, frozen=True):
    """An amount of money."""

    value: float
    currency: Literal["usd"] = "usd"


class CostResult(Struct, frozen=True, kw_only=True):
    """What a group cost on a day; a project is a route, a line item `provider/model, class`."""

    amount: CostAmount
    line_item: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    quantity: int | None = None
    object: Literal["organization.costs.result"] = "organization.costs.result"


class CostBucket(Struct, frozen=True, kw_only=True):
    """A day, in UTC."""

    start_time: int
    end_time: int
    results: list[CostResult]
    object: Literal["bucket"] = "bucket"


class CostPage(Struct, frozen=True, kw_only=True):
    """Days in order."""

    data: list[CostBucket]
    has_more: bool
    next_page: str | None
    object: Literal["page"] = "page"


class CostQuery(Query, frozen=True, kw_only=True):
    """Which days, and by what they are grouped."""

    lists: ClassVar[tuple[str, ...]] = ("group_by", "project_ids", "api_key_ids")

    start_time: Annotated[int, Meta(ge=0, le=LAST_S, description="First day, Unix seconds.")] = 0
    end_time: Annotated[int, Meta(ge=0, le=LAST_S, description="End, not included.")] | None = None
    bucket_width: Literal["1d"] = "1d"
    group_by: list[GroupBy] = []  # noqa: RUF012
    project_ids: list[str] = []  # noqa: RUF012
    api_key_ids: list[str] = []  # noqa: RUF012
    limit: Annotated[int, page_size(MAX_BUCKETS)] = 7
    page: Annotated[int, Meta(ge=0, le=LAST_S, description="`next_page` of the last reply.")] | None = None


@Endpoint("GET", "/v1/organization/costs", reply=CostPage, query=CostQuery)
async def organization_costs(http: HttpRequest) -> Response:
    """What requests cost by day, from the ledger; needs a key with the scope admin."""
    service, query = get_service(http), read_query(CostQuery, http)
    if "start_time" not in http.query_params:
        raise InvalidRequest("start_time is missing: the first day, in Unix seconds", param="start_time")
    return json_response(await service.run_in_thread(lambda: _page(service.ledger, query)))


def _page(database: SqlStore, query: CostQuery) -> CostPage:
    start = (query.start_time if query.page is None else query.page) // DAY_S * DAY_S
    end = query.end_time if query.end_time is not None else _after_last_day(database, start)
    starts = list(range(start, max(start, end), DAY_S)[: query.limit + 1])
    shown = starts[: query.limit]
    results = _results(database, query, shown)
    more = len(starts) > query.limit
    return CostPage(
        data=[
            CostBucket(start_time=day, end_time=day + DAY_S, results=results[day_of(day)]) for day in shown
        ],
        has_more=more,
        next_page=str(starts[-1]) if more else None,
    )


def _after_last_day(database: SqlStore, start: int) -> int:
    if not database.exists:
        return start + 1
    [(last,)] = database.query("SELECT coalesce(max(started_s), 0) FROM ledger_entries")
    return int(last or 0) + 1


def _results(database: SqlStore, query: CostQuery, starts: list[int]) -> dict[str, list[CostResult]]:
    found: dict[str, list[CostResult]] = defaultdict(list)
    if not starts or not database.exists:
        return found
    columns = ", ".join(_COLUMNS[name] if name in query.group_by else "NULL" for name in _COLUMNS)
    where, values = "one.day BETWEEN ? AND ?", [day_of(starts[0]), day_of(starts[-1])]
    for column, wanted in (("one.route", query.project_ids), ("one.key_name", query.api_key_ids)):
        if wanted:
            where += f" AND {column} IN ({', '.join('?' for _ in wanted)})"
            values += wanted
    rows = database.query(
        f"""SELECT one.day, {columns}, sum(posting.quantity), sum(posting.nano_usd)
        FROM ledger_postings posting JOIN ledger_entries one ON one.id = posting.entry
        WHERE posting.class != '' AND {where}
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4""",
        values,
    )
    for day, project, key, item, quantity, nano in cast("list[Any]", rows):
        found[day].append(
            CostResult(
                amount=CostAmount(float(usd_of(nano))),
                line_item=item,
                project_id=project,
                api_key_id=key,
                quantity=quantity if item is not None else None,
            )
        )
    return found
