"""GET /metrics: what Prometheus scrapes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.service import get_service
from headrace.telemetry.exposition import expose

router = APIRouter()


TEXT = {"schema": {"type": "string"}}
CONTENT = {"text/plain": TEXT, "application/openmetrics-text": TEXT}


@router.get(
    "/metrics", response_class=Response, responses={200: {"description": "Metrics", "content": CONTENT}}
)
async def metrics(http: HttpRequest) -> Response:
    """Counts, latencies and memory since the server started, as text or OpenMetrics."""
    service = get_service(http)
    body, content_type = expose(
        service.meter,
        service.model.engine.status(),
        model=service.model.name,
        kv_bytes=service.model.plan.kv_bytes,
        accept=http.headers.get("accept", ""),
    )
    return Response(body, headers={"content-type": content_type})
