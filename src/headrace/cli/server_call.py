"""Calls to a running server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any

from headrace.config.settings import Settings
from headrace.errors import HeadraceError

ANSWER_S = 30.0
WORK_S = 600.0  # for models that load and compute


class ServerRefusal(HeadraceError):
    """The server replied with an error."""


class ServerUnreachable(HeadraceError):
    """No server answers at the address."""


def call_server(settings: Settings, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
    """The JSON reply of the server at the settings' host and port, called with their first API key, one with
    the scope admin if there is any. `body` is sent as JSON.

    Raises ServerUnreachable if there is none or it takes too long, ServerRefusal with the server's message.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    keys = (*settings.admin_api_key, *settings.api_key)
    headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
    sent = None if body is None else json.dumps(body).encode()
    if sent is not None:
        headers["content-type"] = "application/json"
    wait_s = ANSWER_S if sent is None else WORK_S
    connection = HTTPConnection(host, settings.port, timeout=wait_s)
    try:
        connection.request(method, path, sent, headers=headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) and connection.sock is not None:
            raise ServerUnreachable(
                f"the server at {host}:{settings.port} has not answered within {wait_s:g} s: it may still be "
                "at work, see its log"
            ) from None
        raise ServerUnreachable(
            f"no server of headrace answers at {host}:{settings.port} ({error}): start one with "
            "`headrace serve`, or give its address with --host and --port"
        ) from None
    finally:
        connection.close()
    if reply.status == 401:
        raise ServerRefusal(
            f"the server at {host}:{settings.port} "
            + ("does not know this API key" if keys else "asks for an API key")
            + ": give one with --api-key or HEADRACE_API_KEY; `headrace keys add NAME` there makes one"
        )
    if reply.status != 200:
        raise ServerRefusal(_message(answer, reply.status))
    return answer


def _message(answer: Any, status: int) -> str:
    """The server's words; those of another server where the error has another form."""
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return f"the server answered {status}: {json.dumps(answer)[:500]}"
