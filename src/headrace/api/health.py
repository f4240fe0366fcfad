"""GET /health (the engine's loop progresses) and GET /ready (requests are taken)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.call import call_of
from headrace.api.errors import error_response, json_response
from headrace.api.openapi import replies
from headrace.api.service import get_service
from headrace.api.wire import Health, Ready
from headrace.errors import EngineStopped, Overloaded

if TYPE_CHECKING:
    from headrace.engine.engine import EngineStatus

router = APIRouter()

STALLED_S = 60.0  # far beyond the longest step: one chunk of prefill of a large model on a slow CPU


class ProgressWatch:
    """Tells a stalled loop from an idle one: while there is work, the count of steps must grow.

    An idle engine's last step may be hours old when a request arrives, so the age of the last step alone
    would raise a false alarm; the clock starts when work is first seen.
    """

    def __init__(self) -> None:
        self._steps: int | None = None
        self._since_s = 0.0

    def stalled_s(self, status: EngineStatus, now_s: float) -> float:
        """Seconds without a step since work was first seen; 0 when idle."""
        if status.running == 0 and status.waiting == 0:
            self._steps = None
            return 0.0
        if status.steps != self._steps:
            self._steps = status.steps
            self._since_s = now_s
        return now_s - self._since_s


@router.get("/health", responses=replies(Health))
async def health(http: HttpRequest) -> Response:
    """200 while the model loads and while the loop progresses, else 503."""
    service = get_service(http)
    if service.loading:
        return json_response(Health("loading", 0, 0, 0, 0, 0))
    status = service.model.engine.status()
    watch: ProgressWatch = http.app.state.progress
    stalled_s = watch.stalled_s(status, time.monotonic())
    if not status.alive:
        return error_response(EngineStopped("the engine has stopped: restart the server"), call_of(http))
    if stalled_s > STALLED_S:
        return error_response(
            EngineStopped(f"no step for {stalled_s:.0f} s with {status.running} running: restart the server"),
            call_of(http),
        )
    return json_response(
        Health("ok", status.running, status.waiting, status.steps, status.free_pages, status.page_count)
    )


@router.get("/ready", responses=replies(Ready))
async def ready(http: HttpRequest) -> Response:
    """200 while requests are taken, else 503."""
    service = get_service(http)
    if service.draining:
        return error_response(Overloaded("the server is shutting down", retry_after_s=5.0), call_of(http))
    if not service.model.engine.status().alive:
        return error_response(EngineStopped("the engine has stopped: restart the server"), call_of(http))
    return json_response(Ready("ready", service.model.name))
