"""POST /api/pull: fetch a model of the hub, with its progress as it comes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import ClassVar

from msgspec import UNSET, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from headrace.api.http.body import Values, read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.ollama.bodies import ModelBody
from headrace.api.ollama.catalog import model_paths
from headrace.api.ollama.errors import OllamaError
from headrace.api.ollama.model_names import TAG
from headrace.api.ollama.reply import MEDIA_TYPE, line_of, lines_of
from headrace.api.ollama.schema import OllamaStatus
from headrace.api.service import Service, get_service
from headrace.errors import HeadraceError, InvalidRequest, Overloaded
from headrace.weights.hub.resolver import check_pullable, pull

LOG = logging.getLogger("headrace.api")
MAX_PULLS = 4
REPORT_S = 0.2
"""Between two lines of progress."""


class PullBody(ModelBody):
    """The body of /api/pull."""

    unsupported: ClassVar[Mapping[str, Values]] = {"insecure": (False,)}
    stream: bool | None = None


class Pull(Struct):
    """A download that is under way; filled in by its thread."""

    name: str
    done_bytes: int = 0
    total_bytes: int = 0
    error: HeadraceError | None = None

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """What the hub's client reports."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes

    def run(self) -> None:
        """Fetch it. On a thread of its own."""
        try:
            pull(self.name, self.progress)
        except HeadraceError as error:
            self.error = error
        except Exception:
            LOG.exception("%s cannot be pulled", self.name)
            self.error = HeadraceError(f"{self.name} cannot be pulled; the server's log has the details")

    def status(self) -> OllamaStatus:
        """How far it is."""
        sizes = (self.total_bytes, self.done_bytes) if self.total_bytes else (UNSET, UNSET)
        return OllamaStatus(f"pulling {self.name}", self.name, *sizes)


class Pulls:
    """The downloads under way. Lives on the event loop; a client that leaves does not end one."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Pull, asyncio.Future[None]]] = {}

    def start(self, name: str) -> tuple[Pull, asyncio.Future[None]]:
        """Fetch a model, or join those who wait for it; Overloaded where too many are on their way."""
        if name in self._running:
            return self._running[name]
        if len(self._running) >= MAX_PULLS:
            raise Overloaded(
                f"{MAX_PULLS} models are being pulled, as many as are allowed: try again later",
                retry_after_s=30.0,
                reason="pulls",
            )
        loop = asyncio.get_running_loop()
        pulled, ended = Pull(name), loop.create_future()

        def finish() -> None:
            del self._running[name]
            ended.set_result(None)

        def run() -> None:
            pulled.run()
            with suppress(RuntimeError):  # the loop has closed: the server was stopped meanwhile
                loop.call_soon_threadsafe(finish)

        # A daemon, so that a signal ends the program also while a model arrives.
        threading.Thread(target=run, name="headrace-pull", daemon=True).start()
        self._running[name] = pulled, ended
        return pulled, ended


@Endpoint("POST", "/api/pull", body=PullBody, reply=OllamaStatus, content=lines_of(OllamaStatus))
async def pull_model(http: HttpRequest) -> Response:
    """Fetch a model of the hub, or what has changed of it. Nothing that could run is fetched."""
    service = get_service(http)
    body = await read_checked(PullBody, http)
    name = body.model.removesuffix(TAG)
    streams = body.stream is not False
    if await service.run_in_thread(lambda: _is_here(service, name)):
        return _success() if streams else json_response(OllamaStatus("success"))
    pulls = http.app.state.pulls
    assert isinstance(pulls, Pulls)
    pulled, ended = pulls.start(name)
    if streams:
        return StreamingResponse(_lines(pulled, ended), media_type=MEDIA_TYPE)
    await asyncio.shield(ended)
    if pulled.error is not None:
        raise pulled.error
    return json_response(OllamaStatus("success"))


def _is_here(service: Service, name: str) -> bool:
    """Whether there is nothing to fetch; raises where it could not be fetched."""
    if name in model_paths(service) and ("/" not in name or service.settings.offline):
        return True
    check_pullable(name)
    if service.settings.offline:
        raise InvalidRequest(f"the server is offline and {name} is not here: start it without --offline")
    return False


async def _lines(pulled: Pull, ended: asyncio.Future[None]) -> AsyncGenerator[bytes]:
    """A line whenever there is news, and how it ended."""
    told: OllamaStatus | None = None
    while not ended.done():
        if pulled.status() != told:
            told = pulled.status()
            yield line_of(told)
        await asyncio.wait((ended,), timeout=REPORT_S)
    error = pulled.error
    yield line_of(OllamaStatus("success") if error is None else OllamaError(error.message))


def _success() -> Response:
    return Response(line_of(OllamaStatus("success")), media_type=MEDIA_TYPE)
