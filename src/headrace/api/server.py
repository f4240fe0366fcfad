"""Runs the application on a socket until it is told to stop; what is under way gets time to finish."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI

from headrace.api.protocol import BoundedProtocol
from headrace.api.service import Service
from headrace.config import Settings
from headrace.errors import EngineStopped, UsageError

if TYPE_CHECKING:
    from headrace.engine.load import LoadedModel

LOG = logging.getLogger("headrace.api")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(settings: Settings) -> socket.socket:
    """A listening socket; raises UsageError when the address is taken or not this machine's."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server((host, port), family=found[0][0], backlog=2048)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from error


class Server(uvicorn.Server):
    """uvicorn with a drain: listening goes on with 503 until all replies have ended or `drain_s` is over.

    With `load` the app has no model yet: it is loaded by a thread, and until then requests get 503. `failure`
    is what that thread raised, after which the server stops.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: Settings,
        on_started: Callable[[], None],
        load: Callable[[], LoadedModel] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            # Not uvloop: it takes the interpreter's lock anew for every callback, each time behind the
            # engine's thread (docs/decisions/0025).
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self._service: Service = app.state.service
        self._drain_s = settings.drain_s
        self._on_started = on_started
        self._load = load
        self.failure: BaseException | None = None
        self.stopped_by: int | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """SIGINT and SIGTERM drain; they are not raised again as uvicorn does, so the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: end what is under way with an error, now."""
        self.stopped_by = self.stopped_by or sig
        self.force_drain = self.should_exit
        self.should_exit = True

    force_drain = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, load the model where there is none yet, then say so."""
        await super().startup(sockets)
        if self._load is None:
            self._on_started()
            return
        # A daemon, so that a signal ends the program also while a model loads.
        arguments = (asyncio.get_running_loop(), self._load)
        threading.Thread(target=self._load_model, args=arguments, name="headrace-load", daemon=True).start()

    def _load_model(self, loop: asyncio.AbstractEventLoop, load: Callable[[], LoadedModel]) -> None:
        try:
            outcome = partial(self._loaded, load())
        except BaseException as error:
            outcome = partial(self._failed, error)
        with suppress(RuntimeError):  # the loop has closed: the server was stopped meanwhile
            loop.call_soon_threadsafe(outcome)

    def _loaded(self, model: LoadedModel) -> None:
        self._service.provide(model)
        self._on_started()

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close. Requests still under way after `drain_s` end with an error event."""
        self._service.draining = True
        deadline_s = asyncio.get_running_loop().time() + self._drain_s
        while self._service.under_way and not self.force_drain:
            if asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(0.02)
        for generation in list(self._service.under_way):
            generation.fail(EngineStopped("the server shut down before this reply ended: send it again"))
        while self._service.under_way and self._service.model.engine.status().alive:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)


def serve(
    app: FastAPI,
    settings: Settings,
    listener: socket.socket,
    on_started: Callable[[], None],
    load: Callable[[], LoadedModel] | None = None,
) -> int | None:
    """Serve until SIGINT or SIGTERM; returns the signal. `on_started` is called when requests are taken.

    Raises what `load` has raised.
    """
    server = Server(app, settings, on_started, load)
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
    return server.stopped_by
