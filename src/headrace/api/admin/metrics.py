"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.service import get_service
from headrace.telemetry.prometheus import NO_ENGINE, ModelReport, expose

router = APIRouter()


TEXT = {"schema": {"type": "string"}}
CONTENT = {"text/plain": TEXT, "application/openmetrics-text": TEXT}


@router.get(
    "/metrics", response_class=Response, responses={200: {"description": "Metrics", "content": CONTENT}}
)
async def metrics(http: HttpRequest) -> Response:
    """Counts, latencies and memory since the server started, as text or OpenMetrics."""
    service = get_service(http)
    service.gate.check_started()
    reports = [
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
    body, content_type = expose(service.metrics, reports, accept=http.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
