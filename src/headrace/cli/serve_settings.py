"""Runs `headrace serve` once settings are read: socket, models, startup message, reload."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from headrace.api.app import App, create_app
from headrace.api.http.middleware import exposed, needs_key
from headrace.api.http.server import bind, serve
from headrace.api.service import Service
from headrace.api.statements import checked_settings
from headrace.cli.fetching import fetch
from headrace.cli.greeting import greeting
from headrace.cli.terminal import note, progress_bar
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.config.cluster_settings import check_fronts, read_cluster
from headrace.config.extras import extra_module
from headrace.config.mcp import read_mcp
from headrace.config.providers import key_variables
from headrace.config.settings import Settings
from headrace.config.sources import model_entries
from headrace.config.stderr_log import log_to_stderr
from headrace.errors import HeadraceError
from headrace.loading.free_memory import free_memory_bytes
from headrace.storage.ledger_store import check_keys
from headrace.weights.hub.resolver import list_local
from headrace.workers.model_entry import Policy
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec, read_specs, spec_of
from headrace.workers.process import WorkerProcess
from headrace.workers.spawn import Spawned, hide
from headrace.workers.worker_loader import WorkerLoader

if TYPE_CHECKING:
    from headrace.flight.server import FlightServer

LOG = logging.getLogger("headrace.cli")

# Settings that a running server cannot change.
FIXED_SETTINGS = (
    *("cluster", "host", "port", "flight_port", "store", "journal", "ledger", "node_usd_per_hour"),
    *("log_requests", "log_max_requests", "log_max_bytes", "log_max_days", "log_format"),
)


def run(
    names: Sequence[str], settings: Settings, read_settings: Callable[[], Settings], first: Spawned
) -> None:
    """Serve until a signal; `first` is a worker process started for the first model."""
    log_to_stderr(settings.log_format)
    lookahead_tokens = [WorkerProcess(first)]
    cluster = read_cluster(settings.cluster)
    check_fronts(settings)
    check_keys(settings)

    def launch(spec: ModelSpec) -> WorkerLoader:
        process = None
        if lookahead_tokens:
            fetch(spec.model, settings)
            process = lookahead_tokens.pop()
        if cluster is None:
            return WorkerLoader(spec, process, spawner=first.spawner)
        return ClusterLoader(spec, cluster, process, spawner=first.spawner)

    free_bytes = free_memory_bytes()
    try:
        table = ModelManager(read_specs(names, settings), launch, policy_of(settings, free_bytes))
        with bind(settings) as listener, ExitStack() as shown:
            for warning in exposed(settings):
                note(f"warning: {warning}")
            app = create_app(table, settings, model_entries())
            service: Service = app.state.service
            host, port = listener.getsockname()[:2]
            flight = flight_servers(app, settings, host)
            stopped_by = serve(
                app,
                settings,
                listener,
                on_started=lambda: _greet(table, service.settings, host, port, [one.port for one in flight]),
                progress=_Bar(shown),
                reload=lambda: _reload(service, names, read_settings, free_bytes),
                beside=flight,
            )
    finally:
        for process in lookahead_tokens:
            process.close()
        first.spawner.close()
    if stopped_by == signal.SIGINT:
        sys.exit(130)


class _Bar:
    """A progress bar from the first to the last byte; downloading a model has a separate bar."""

    def __init__(self, shown: ExitStack) -> None:
        self._shown = shown
        self._update: Callable[[int, int], None] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._update is None:
            self._update = self._shown.enter_context(progress_bar("packing weights"))
        self._update(done, total)
        if done == total:
            self._shown.close()


def policy_of(settings: Settings, free_bytes: int) -> Policy:
    """What models may take, and which may be loaded."""
    return Policy(
        memory_bytes=settings.memory or free_bytes,
        load_timeout=settings.load_timeout,
        load_on_demand=partial(_on_demand, settings),
        any_name=settings.any_model_name,
    )


def _on_demand(settings: Settings, name: str) -> ModelSpec | None:
    """A spec for a model without an entry, if enabled: a model on this machine, by name, never by path."""
    known = settings.load_on_demand and any(model.name == name for model in list_local())
    return spec_of(name, settings) if known else None


def _reload(
    service: Service, names: Sequence[str], read_settings: Callable[[], Settings], free_bytes: int
) -> None:
    """Apply the current settings; if they are invalid, nothing changes."""
    try:
        settings = read_settings()
        hide(key_variables(settings.providers))
        check_fronts(settings)
        specs = read_specs(names, settings)
        service.check_guards(settings, specs)
        checked_settings(settings)
        read_mcp(settings.mcp)
        service.serve_remote(settings, model_entries())
    except HeadraceError as error:
        LOG.error("settings are unchanged: %s", error.message)
        return
    for name in FIXED_SETTINGS:
        if getattr(settings, name) != getattr(service.settings, name):
            LOG.warning("%s has changed; this takes effect after a restart", name)
    service.configure(settings)
    service.models.update(specs, policy_of(settings, free_bytes))
    LOG.warning("settings reloaded")


def flight_servers(app: App, settings: Settings, host: str) -> Sequence[FlightServer]:
    """What serves Flight SQL, where a port for it is set."""
    if settings.flight_port is None:
        return ()
    module = extra_module("flight", "headrace.flight.server", "grpc", "pyarrow", "duckdb")
    return (module.FlightServer(app, host, settings.flight_port),)


def _greet(
    table: ModelManager, settings: Settings, host: str, port: int, flight_ports: Sequence[int]
) -> None:
    with suppress(OSError):  # a server needs no terminal
        lines = greeting(table.entries, settings, host, port, needs_key=needs_key(settings))
        lines[1:1] = [f"  Arrow Flight SQL on port {one}" for one in flight_ports]
        print("\n".join(lines), flush=True)
