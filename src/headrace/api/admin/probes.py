"""GET /v1/probes: what `headrace bench endpoints` has measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, to_builtins
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.query import Query, read_query
from headrace.api.service import get_service
from headrace.config.extras import extra_module
from headrace.storage.probes import Probes

if TYPE_CHECKING:
    from headrace.storage.database import Database


class ProbeQuery(Query, frozen=True, kw_only=True):
    """Which endpoints; without `endpoint` all."""

    lists: ClassVar[tuple[str, ...]] = ("endpoint",)

    endpoint: list[Annotated[str, Meta(max_length=200)]] = []  # noqa: RUF012


class ProbeList(Struct, frozen=True):
    """Endpoints by name: medians of the last 72 hours, of prompts from 100,000 tokens on of 14 days."""

    data: list[dict[str, Any]]
    object: Literal["list"] = "list"


@Endpoint("GET", "/v1/probes", reply=ProbeList, query=ProbeQuery)
async def probes(http: HttpRequest) -> Response:
    """What `headrace bench endpoints` has measured of endpoints; needs a key with the scope admin."""
    service, query = get_service(http), read_query(ProbeQuery, http)
    return json_response(await service.run_in_thread(lambda: _list(service.database, query)))


def _list(database: Database, query: ProbeQuery) -> ProbeList:
    summary = extra_module("gateway", "headrace.providers.probe.summary", "aiohttp")
    found = summary.summaries(Probes(database), time.time(), query.endpoint or None)
    return ProbeList([to_builtins(one) for one in found])
