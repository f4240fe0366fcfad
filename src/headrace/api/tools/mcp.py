"""POST /v1/mcp: the tools of this server for clients of MCP, over streamable HTTP."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import BodyTooLarge
from headrace.api.http.request_body import read_body
from headrace.api.server_tools import McpApplication
from headrace.api.service import get_service

MAX_BODY = 4 * 2**20


@Endpoint("POST", "/v1/mcp", hidden=True)
async def serve_mcp(http: HttpRequest) -> Response:
    """One message of the Model Context Protocol. Each request is one of its key; there are no sessions, and
    no stream without a request (GET)."""
    application = await get_service(http).tools.http()
    data = await read_body(http)
    if len(data) > MAX_BODY:
        raise BodyTooLarge(f"the body has {len(data):,} bytes, at most {MAX_BODY:,} may be")
    return _McpReply(application, data)


class _McpReply(Response):
    """Answers with an application, which reads a body that was read before."""

    def __init__(self, application: McpApplication, data: bytes) -> None:
        super().__init__()
        self._application, self._data = application, data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""
        sent = False

        async def receive_again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": self._data, "more_body": False}

        await self._application(scope, receive_again, send)
