"""Runs the application on a socket until it is told to stop; what is under way gets time to finish."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

from headrace.api.http.bounded_protocol import BoundedProtocol
from headrace.api.service import Service
from headrace.config.settings import Settings
from headrace.errors import EngineStopped, HeadraceError, UsageError

LOG = logging.getLogger("headrace.api")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ACCEPTS_PER_TURN = 32
CANCEL_S = 5.0  # far beyond a step, after which what was cancelled has ended


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


class Listening(Protocol):
    """Another way to the application, on a port of its own."""

    async def start(self) -> None:
        """Listen; raises what prevents that."""
        ...

    async def stop(self) -> None:
        """End what runs, within seconds."""
        ...


class Server(uvicorn.Server):
    """uvicorn with a drain: listening goes on with 503 until all replies have ended, or
    `shutdown_timeout` is over.

    Where the default model is not loaded yet it is loaded then, and until it is there requests get 503.
    `failure` is what prevented that, after which the server stops. SIGHUP calls `reload`.
    """

    def __init__(
        self,
        app: Starlette,
        settings: Settings,
        on_started: Callable[[], None],
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
        reload: Callable[[], None] = lambda: None,
        beside: Sequence[Listening] = (),
    ) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            loop="uvloop" if _has_uvloop() else "asyncio",
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
        self._on_started = on_started
        self._progress = progress
        self._reload = reload
        self._beside = beside
        self._loading: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self.stopped_by: int | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """SIGINT and SIGTERM drain; they are not raised again as uvicorn does, so the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._reload_soon)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _reload_soon(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:  # not in the handler: it may have interrupted anything
            self._loop.call_soon_threadsafe(self._reload)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: end what is under way with an error, now."""
        self.stopped_by = self.stopped_by or sig
        self.force_drain = self.should_exit
        self.should_exit = True

    force_drain = False
    _loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, load the model where there is none yet, then say so."""
        await super().startup([handle for one in sockets or () for handle in _handles(one)])
        self._loop = asyncio.get_running_loop()
        try:
            for one in self._beside:
                await one.start()
        except HeadraceError as error:
            self.failure, self.should_exit = error, True
            return
        if not self._service.gate.starting:
            self._on_started()
            return
        self._loading = asyncio.ensure_future(self._load_default())

    async def _load_default(self) -> None:
        models = self._service.models
        try:
            await models.load(models.default, self._progress)
            self._service.gate.starting = False
            self._on_started()
        except BaseException as error:
            if not self.should_exit:  # told to stop meanwhile: nobody misses the model
                self.failure = error
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close. Requests still under way after `shutdown_timeout` end with an error event."""
        self._service.gate.draining = True
        deadline_s = asyncio.get_running_loop().time() + self._service.settings.shutdown_timeout
        while (self._service.local.runs or self._service.remote.running) and not self.force_drain:
            if asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(0.02)
        await self._service.remote.close()  # what is left there ends with an error
        for generation in list(self._service.local.runs):
            generation.fail(EngineStopped("the server shut down before this reply ended: send it again"))
        deadline_s = asyncio.get_running_loop().time() + CANCEL_S
        while self._service.local.runs and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.01)
        for one in self._beside:
            await one.stop()
        await self._service.models.close()  # which ends what is left
        await super().shutdown(sockets)


def serve(
    app: Starlette,
    settings: Settings,
    listener: socket.socket,
    on_started: Callable[[], None],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    reload: Callable[[], None] = lambda: None,
    beside: Sequence[Listening] = (),
) -> int | None:
    """Serve until SIGINT or SIGTERM; returns the signal. `on_started` is called when requests are taken,
    `progress` with bytes done and in all while the default model loads, `reload` on the loop for a SIGHUP.
    What is `beside` listens from the start to the end.

    Raises what prevents the default model from loading.
    """
    server = Server(app, settings, on_started, progress=progress, reload=reload, beside=beside)
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
    return server.stopped_by


def _handles(listener: socket.socket) -> list[socket.socket]:
    """The socket, and copies of it: libuv accepts one connection of each in a turn of the loop, and where
    many streams are written a turn takes long."""
    return [listener, *(listener.dup() for _ in range(ACCEPTS_PER_TURN - 1))]


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return False
    return True
