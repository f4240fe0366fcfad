"""GET /health (the engine's loop progresses) and GET /ready (requests are taken)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import error_response, json_response
from headrace.api.http.journaling import ServerJournal
from headrace.api.llama_cpp.errors import llama_error_body
from headrace.api.openai.model_schema import HealthBody, JournalHealth, ReadyBody
from headrace.api.service import get_service
from headrace.errors import EngineStopped, ModelLoading, Overloaded

if TYPE_CHECKING:
    from headrace.engine.client import EngineStatus
    from headrace.workers.model_entry import ModelEntry

STALLED_S = 5.0
STALLED_STEPS = 4
"""A loop with work stands still where it makes no step for STALLED_S and for so many times the longest step
that it has made: a chunk of a prompt may take long in a large model."""


@Endpoint("GET", "/health", reply=HealthBody)
async def health(http: HttpRequest) -> Response:
    """200 while the default model runs and every loop progresses; else, also while it loads, 503."""
    service = get_service(http)
    if service.gate.starting:  # in the words of llama.cpp's server, which clients and tests of it wait for
        loading = ModelLoading("the model is loading", reason="loading")
        return json_response(llama_error_body(loading), status=503, headers={"retry-after": "1"})
    entries = service.models.entries
    states = {entry.name: _state(entry) for entry in entries}
    loaded = {entry.name: entry.model.engine.status() for entry in entries if entry.model is not None}
    problem = _problem(loaded, service.models.default.name)
    if problem is not None:
        return error_response(EngineStopped(problem), call_of(http))
    statuses = loaded.values()
    return json_response(
        HealthBody(
            "restarting" if "restarting" in states.values() else "ok",
            sum(status.running for status in statuses),
            sum(status.waiting for status in statuses),
            sum(status.steps for status in statuses),
            sum(status.free_pages for status in statuses),
            sum(status.page_count for status in statuses),
            states,
            UNSET if service.journal is None else _journal(service.journal),
        )
    )


def _journal(journal: ServerJournal) -> JournalHealth:
    damages, failure = journal.damages, journal.journal.failure
    return JournalHealth(
        "paused" if failure is not None else "damaged" if damages else "ok",
        len({id(one) for one in journal.running.values()}),
        journal.resumed,
        journal.journal.log.size_bytes,
        journal.journal.dropped,
        damages,
        None if failure is None else failure.message,
    )


def _state(entry: ModelEntry) -> str:
    restarting = entry.model is not None and entry.model.engine.status().state == "restarting"
    return "restarting" if restarting else entry.state


def _problem(loaded: Mapping[str, EngineStatus], default: str) -> str | None:
    """What is wrong: the default model is dead, or the loop of any stands still."""
    for name, status in loaded.items():
        if name == default and not status.alive:
            return status.failure or "the engine has stopped: restart the server"
        patience_s = max(STALLED_S, STALLED_STEPS * status.longest_step_s)
        if status.stalled_s > patience_s and status.state == "running":
            return (
                f"{name!r} made no step for {status.stalled_s:.0f} s with {status.running} running and "
                f"{status.waiting} waiting: its process is restarted if that goes on"
            )
    return None


@Endpoint("GET", "/ready", reply=ReadyBody)
async def ready(http: HttpRequest) -> Response:
    """200 while requests are taken, else 503; 503 also while the default model's worker restarts."""
    service = get_service(http)
    if service.gate.draining:
        return error_response(Overloaded("the server is shutting down", retry_after_s=5.0), call_of(http))
    service.gate.check_started()
    default = service.models.default
    status = None if default.model is None else default.model.engine.status()
    if status is not None and not status.alive:
        message = status.failure or "the engine has stopped: restart the server"
        return error_response(EngineStopped(message), call_of(http))
    if status is not None and status.state == "restarting":
        return error_response(
            ModelLoading(f"{default.name!r} restarts: try again in a moment", reason="restarting"),
            call_of(http),
        )
    return json_response(ReadyBody("ready", default.name))
