"""POST /v1/moderations: the path is kept for what is to come."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from headrace.errors import InvalidRequest

router = APIRouter(include_in_schema=False)


@router.post("/v1/moderations")
async def create_moderation() -> Response:
    """Refused until there are classifiers to answer with."""
    raise InvalidRequest(
        "moderations are not supported yet: they will come with classification models; until then ask a chat "
        "model, with a JSON schema for its verdict",
        code="unsupported_endpoint",
    )
