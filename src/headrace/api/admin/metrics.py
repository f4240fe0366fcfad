"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.service import Service, get_service
from headrace.errors import NotEnabled
from headrace.telemetry.prometheus import NO_ENGINE, ModelReport, expose

TEXTS = ("text/plain", "application/openmetrics-text")
STARTED_S = time.time()
LOOP_SHARE = 0.05  # of the event loop's time that rendering may take; until then a reply is sent again


@Endpoint(
    "GET",
    "/metrics",
    content=tuple(Content(kind, {"type": "string"}) for kind in TEXTS),
    errors={501: "Switched off."},
)
async def metrics(http: HttpRequest) -> Response:
    """Counts, latencies and memory since the server started, as text or OpenMetrics."""
    service = get_service(http)
    if service.settings.disable_metrics:
        raise NotEnabled("/metrics is switched off by the setting disable_metrics")
    service.gate.check_started()
    rendered = _rendered(http)
    accept, start_s = http.headers.get("accept", ""), time.monotonic()
    reply = rendered.replies.get(accept) if start_s < rendered.fresh_until_s else None
    if reply is None:
        if start_s >= rendered.fresh_until_s:
            rendered.replies.clear()
        if service.journal is not None:
            service.metrics.journal_dropped = service.journal.journal.dropped
            service.metrics.journal_paused = service.journal.journal.failure is not None
        reply = rendered.replies[accept] = expose(service.metrics, model_reports(service), accept=accept)
        end_s = time.monotonic()
        rendered.fresh_until_s = end_s + (end_s - start_s) / LOOP_SHARE
    body, content_type = reply
    headers = {"content-type": content_type, "process-start-time-unix": str(int(STARTED_S))}
    return Response(body, headers=headers)


@dataclass
class _Rendered:
    """Replies by what was accepted, and until when (monotonic) they are sent again."""

    replies: dict[str, tuple[bytes, str]] = field(default_factory=dict[str, tuple[bytes, str]])
    fresh_until_s: float = 0.0


def _rendered(http: HttpRequest) -> _Rendered:
    state = http.app.state
    if not hasattr(state, "rendered_metrics"):
        state.rendered_metrics = _Rendered()
    rendered = state.rendered_metrics
    assert isinstance(rendered, _Rendered)
    return rendered


def model_reports(service: Service) -> list[ModelReport]:
    """What the figures of each served model are made of, the default model first."""
    return [
        ModelReport(
            name=entry.name,
            state=entry.state,
            meter=service.metrics_of(entry.name),
            status=NO_ENGINE if entry.model is None else entry.model.engine.status(),
            kv_bytes=0 if entry.model is None else entry.model.plan.kv_bytes,
            restarts=entry.restarts,
            cache_failures=entry.cache_failures,
            cache_damages=entry.cache_damages,
        )
        for entry in service.models.entries
    ]
