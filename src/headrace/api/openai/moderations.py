"""POST /v1/moderations: the path is kept for what is to come."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.endpoint import Endpoint
from headrace.errors import InvalidRequest


@Endpoint("POST", "/v1/moderations", hidden=True)
async def create_moderation(http: HttpRequest) -> Response:
    """Refused until there are classifiers to answer with."""
    raise InvalidRequest(
        "moderations are not supported yet: they will come with classification models; until then ask a chat "
        "model, with a JSON schema for its verdict",
        code="unsupported_endpoint",
    )
