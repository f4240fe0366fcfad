"""GET /slots: how many sequences may run, and how many do."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.query import Query, read_query
from headrace.api.llama_cpp.schema import Slot, listed
from headrace.api.service import get_service
from headrace.errors import NotEnabled, Overloaded


class SlotsQuery(Query, kw_only=True, frozen=True):
    """Which model is meant, and with `fail_on_no_slot` 503 where all its places are taken."""

    model: str | None = None
    fail_on_no_slot: str | None = None


@Endpoint(
    "GET",
    "/slots",
    reply=Slot,
    content=(listed(Slot),),
    query=SlotsQuery,
    errors={404: "No such model", 501: "Switched off.", 503: "All are taken."},
)
async def slots(http: HttpRequest) -> Response:
    """The places of running sequences, in a list. No sequence has a place of its own: their number counts."""
    service = get_service(http)
    if service.settings.disable_slots:
        raise NotEnabled("/slots is switched off by the setting disable_slots")
    service.gate.check_started()
    query = read_query(SlotsQuery, http)
    model = await service.use(call_of(http), query.model)
    running, places = model.engine.status().running, model.engine.limits.max_num_seqs
    if query.fail_on_no_slot and running >= places:
        raise Overloaded(f"all {places} places for sequences are taken: try again in a moment")
    found = [Slot(index, model.context_length, index < running) for index in range(places)]
    return json_response(msgspec.Raw(msgspec.json.encode(found)))
