"""What the endpoints share: the handler chain, keys, the store, memory for bodies, and their counters."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace
from starlette.requests import Request as HttpRequest

from headrace.adapt.fine_tuning.base import base_folder
from headrace.api.http.api_keys import KeyRing
from headrace.api.http.body_memory import BodyMemory
from headrace.api.http.call_context import HttpCall
from headrace.api.http.idempotency import IdempotentCalls
from headrace.api.http.journaling import ServerJournal
from headrace.api.http.request_log import MAX_PATH, UNREAD, RequestLog, ended_call
from headrace.api.remote_models import EXTRA, LIBRARIES, RemoteModels
from headrace.api.server_tools import ServerTools
from headrace.api.statements import Statements
from headrace.config.adapt_settings import read_adapt
from headrace.config.cache_settings import read_cache
from headrace.config.cluster_settings import read_cluster, shares_store
from headrace.config.extras import extra_module
from headrace.config.journal_settings import read_journal
from headrace.config.settings import Settings
from headrace.economy.machine import MachineHandler, machine_recorder
from headrace.engine.request import Usage
from headrace.errors import HeadraceError, ModelNotFound, StoreError
from headrace.inference.adapted_engine import adapted_name
from headrace.inference.admission import AdmissionGate
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Handler, OpenStream, open_stream
from headrace.inference.handlers import build_chain
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ManagedModels, ModelThreads
from headrace.inference.requests import InferenceRequest
from headrace.inference.response_store import ResponseStore
from headrace.inference.store_threads import StoreThreads
from headrace.search.indexes import indexes_of
from headrace.search.readers.document_reader import DocumentReader
from headrace.storage.aliases import Aliases
from headrace.storage.database import Database
from headrace.storage.idempotent_replies import IdempotentReplies
from headrace.storage.ledger_store import ledger_store, shared_store
from headrace.tasks.guards.handler import GuardHandler
from headrace.tasks.guards.settings import check_served, read_guards
from headrace.tasks.moderation import read_moderation
from headrace.telemetry.request_metrics import ModelMetrics
from headrace.telemetry.tracing import configured_tracing
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec, spec_of, without_sizes

if TYPE_CHECKING:
    from headrace.adapt.adapting import Adapting
    from headrace.engine.client import LoadedModel
    from headrace.gateway.response_caching import ResponseCaching
    from headrace.workers.model_entry import ModelEntry

CLIENT_GONE = 499  # never sent, only counted and logged

T = TypeVar("T")


class Service:
    """Made before the event loop runs; then it belongs to the loop."""

    def __init__(self, models: ModelManager, settings: Settings) -> None:
        self.models = models
        self.settings = settings
        cluster = read_cluster(settings.cluster)
        self.fronts = 1 if cluster is None else cluster.fronts
        """Servers behind one address, of which this is one."""
        self.is_shared = shares_store(settings)
        journal = read_journal(settings.journal)
        is_synced = journal is not None and journal.fsync == "power"
        self.database = Database(settings.store_file, survives_power_cuts=is_synced)
        self.shared = shared_store(self.database, settings)
        """Keys, files, batches, responses: in `database`, or where all servers at this address have them."""
        self.keys = KeyRing(settings, self.shared)
        self.metrics = ModelMetrics()
        """Counters of HTTP calls; those of models are in `metrics_of`."""
        self.threads = StoreThreads()
        self.responses = ResponseStore(self.shared, self.threads)
        self.idempotent = IdempotentCalls(IdempotentReplies(self.shared), self.threads)
        self._parsers = ThreadPoolExecutor(2, thread_name_prefix="headrace-parse")
        self._searchers = ThreadPoolExecutor(2, thread_name_prefix="headrace-search")
        self.statements = Statements(settings)
        self.indexes = indexes_of(settings)
        self.documents = DocumentReader()
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="headrace-documents")
        self.tools = ServerTools(settings)
        self.model_threads = ModelThreads(2)
        self.sources = ManagedModels(models)
        self.local = LocalHandler(
            self.sources,
            self.model_threads,
            settings.tool_format,
            usd_per_hour=settings.node_usd_per_hour,
        )
        self.ledger = ledger_store(self.database, settings.ledger)
        self._machine = machine_recorder(self.ledger, settings.node_usd_per_hour)
        local = self.local if self._machine is None else MachineHandler(self.local, self._machine)
        self.caching = self._caching(settings)
        local = local if self.caching is None else self.caching.local(local)
        self.remote = RemoteModels(local, self.database, self._serves, self.ledger)
        self.metrics.attempts = self.remote.attempts
        if self.caching is not None:
            self.metrics.answers = self.caching.cache.counts
            self.metrics.answer_tokens = self.caching.cache.saved_tokens
        self.gate = AdmissionGate(
            settings.max_concurrent_requests, settings.max_queued_tokens, lambda: self.local.queued_tokens
        )
        self.gate.starting = models.default.model is None
        inner = self.remote.runner = ModelRunner(local, self.sources, self.model_threads)
        self.adapting = self._adapting(settings, inner)
        if self.adapting is not None:
            self.remote.serve_students(
                self.adapting.students, self.adapting.reroute, self.adapting.before_local
            )
            self.adapting.served_name = self.served_name
            actions = self.adapting.actions
            actions.weights_of = self.weights_of
            actions.adapters.load, actions.adapters.unload = self.load_adapter, self.unload_adapter
            actions.adapters.load_model, actions.adapters.unload_model = (
                self.load_student,
                self.unload_student,
            )
            actions.judge.answering = lambda: self.remote.handler
            actions.is_busy = lambda: self.gate.open_calls > actions.open_calls
        self.guards = GuardHandler(self._answering, read_guards(settings.guards), inner)
        self.moderation = read_moderation(settings.moderation)
        self.handler: Handler = build_chain(self.guards, self.gate)
        self.runner = ModelRunner(self.handler, self.sources, self.model_threads)
        self.journal = None if journal is None else ServerJournal(journal, self.threads, self.gate)
        self.requests = RequestLog(self.database, settings, self.metrics)
        self.tracing = configured_tracing()
        self.bodies = BodyMemory()
        self.read_aliases()

    def _caching(self, settings: Settings) -> ResponseCaching | None:
        found = read_cache(settings.cache)
        if found is None:
            return None
        caching = importlib.import_module("headrace.gateway.response_caching")  # only where it is used
        return caching.ResponseCaching(
            *(found, settings.store_file, self.sources),
            tool_format=lambda: self.local.tool_format,
            is_idle=lambda: not self.local.runs,
        )

    def _adapting(self, settings: Settings, runner: ModelRunner) -> Adapting | None:
        found = read_adapt(settings.adapt)
        if not found.enabled:
            return None
        module = extra_module(EXTRA, "headrace.adapt.adapting", *LIBRARIES)
        gates = importlib.import_module("headrace.gateway.gate").GateStore(self.database)
        price = settings.node_usd_per_hour or 0.0
        return module.Adapting(found, settings.store_file, runner, gates, price)

    @property
    def _answering(self) -> Handler:
        """What answers requests: remote models and those of this machine, until the next update."""
        handler = self.remote.handler
        if self.caching is not None:
            handler = self.caching.remote(handler, self.remote.find)
        return handler if self.adapting is None else self.adapting.handler(handler)

    def served_name(self, name: str | None) -> str | None:
        """The own name of a model of this machine, or of its adapter, whatever name or alias a request has
        for it; None where it is not served. Nothing is loaded."""
        if name is not None and not self._serves(name) and not self.models.policy.any_name:
            return None
        adapted, entry = self.sources.adapted(name), self.sources.find(name)
        return entry.name if adapted is None else adapted_name(entry.name, adapted[1].name)

    def weights_of(self, name: str) -> Path:
        """The folder of a served model that adapters can be trained on; raises where it is none."""
        entry = self.sources.find(name)
        if name not in (
            entry.name,
            *entry.spec.aliases,
            *self.sources.aliases,
        ):  # the default, or an adapter
            raise ModelNotFound(f"{name!r} is no model of this machine by its own name", param="model")
        return base_folder(entry.spec.model, name)

    async def load_adapter(self, model: str, name: str, path: Path) -> str:
        """Load an adapter for a served model, now or when that is loaded; the name that requests ask for."""
        entry = self.sources.find(model)
        if entry.model is None and entry.loading is None and not entry.fixed:
            entry.adapters.remember(name, path)  # it comes with its model
        else:
            await self.models.load_adapter(entry, name, path, in_place=True)
        return adapted_name(entry.name, name)

    async def unload_adapter(self, model: str, name: str) -> None:
        """Unload it."""
        entry = self.sources.find(model)
        await entry.adapters.unload(entry.model, name)

    async def load_student(self, name: str, folder: Path) -> None:
        """Load the model in a folder under a name that is in no list. Raises what prevents it."""
        spec = replace(spec_of(str(folder), without_sizes(self.settings)), name=name)
        try:
            await self.models.load(self.models.add_unlisted(spec))
        except HeadraceError:
            self.models.remove_unlisted(name)
            raise

    async def unload_student(self, name: str) -> None:
        """Serve it no more."""
        self.models.remove_unlisted(name)

    def _serves(self, name: str) -> bool:
        """Whether a model of this machine, or an alias of one, has that name."""
        return self.models.serves(name) or name in self.sources.aliases

    def read_aliases(self) -> None:
        """Take over the store's aliases. Reads the store: not for the event loop."""
        with suppress(StoreError):  # the server starts without them
            self.sources.aliases = {alias.name: alias for alias in Aliases(self.database).all()}

    def find(self, name: str | None, call: CallContext | None = None) -> ModelEntry:
        """As `ManagedModels.find`; InvalidRequest for a remote model."""
        self.remote.check_local(name)
        return self.sources.find(name, call)

    def configure(self, settings: Settings) -> None:
        """Take over settings that were read again."""
        self.settings = settings
        self.gate.max_calls, self.gate.max_queued_tokens = (
            settings.max_concurrent_requests,
            settings.max_queued_tokens,
        )
        self.local.tool_format = settings.tool_format
        self.guards.guards = read_guards(settings.guards)
        self.moderation = read_moderation(settings.moderation)
        self.statements.configure(settings)
        self.tools.configure(settings)

    def check_guards(self, settings: Settings, specs: Sequence[ModelSpec]) -> None:
        """UsageError where a guard's model is none of `specs` and cannot be loaded on demand either."""
        policy = self.models.policy
        known = {name for spec in specs for name in (spec.name, *spec.aliases)} | self.sources.aliases.keys()

        def serves(name: str) -> bool:
            return name in known or policy.any_name or policy.load_on_demand(name) is not None

        check_served(read_guards(settings.guards), serves, ", ".join(repr(spec.name) for spec in specs))
        if self.adapting is not None:
            self.adapting.check(serves, lambda name: self.remote.find(name) is not None)

    def serve_remote(self, settings: Settings, entries: Mapping[str, object]) -> None:
        """Serve the remote models among the entries of [models] from now on; UsageError."""
        self.remote.update(settings, entries)
        self.guards.inner = self._answering
        self.models.elsewhere = [route.name for route in self.remote.routes]

    def metrics_of(self, name: str) -> ModelMetrics:
        """The counters of a model's requests."""
        return self.sources.metrics_of(name)

    async def open(self, request: InferenceRequest, call: CallContext) -> OpenStream:
        """Start a request; raises what refuses it."""
        return await open_stream(self.handler, request, call)

    def ended(self, call: HttpCall) -> None:
        """A call is over, whatever its outcome."""
        call.status = call.status or CLIENT_GONE
        for release in call.releases:
            release()
        self.metrics.replies[call.status] += 1
        self.metrics.warnings.update(warning.param for warning in call.warnings)
        if call.refusal is not None:
            self.metrics.rejected[call.refusal] += 1
        if call.method != "POST":
            return
        call.total_s, call.model = time.monotonic() - call.arrival_s, call.model or self.models.default.name
        call.error_code = None if call.error is None else call.error.code or call.error.kind
        _lighten(call)
        requests = self.requests
        requests.waiting.append(call)
        at_once = requests.is_eager or call.explain or call.keeps_content
        if at_once or len(requests.waiting) >= UNREAD:
            requests.flush(is_asked_for=at_once)
        if self.tracing is not None:
            self.tracing.ended(ended_call(call))
        call.params = None  # which may be large, and is in no line

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` on the store in a thread."""
        return await self.threads.run(work)

    async def parse_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` that parses a large body in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._parsers, work)

    async def documents_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` that reads a document in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def search_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` that searches a text for patterns, or writes what was found, in a thread. One text at a
        time: then others get their turn, and a client that leaves is noticed."""
        return await asyncio.get_running_loop().run_in_executor(self._searchers, work)

    async def prepare_in_thread(self, model: LoadedModel, work: Callable[[], T]) -> T:
        """Run `work` with a model's template or tokenizer in a thread of that model."""
        return await self.model_threads.run(model, work)

    async def use(
        self, call: HttpCall, name: str | None, *, keep_alive_s: float | None = None
    ) -> LoadedModel:
        """The model of that name (None: the default one), kept in memory until `call` has ended.

        For endpoints that need more of a model than answers. `keep_alive_s` as in InferenceRequest.
        """
        entry = self.find(name, call)
        call.model = entry.name
        model, release = await self.models.acquire(entry, keep_alive_s, user=call)
        call.releases.append(release)
        return model

    def close(self) -> None:
        """Stop the threads and close the store; the model belongs to the caller."""
        self.requests.close()
        if self.tracing is not None:
            self.tracing.close()
        if self._machine is not None:
            self._machine.close()
        self.keys.close()
        self.ledger.close()
        self.shared.close()
        self.database.close()
        self.threads.close()
        self._parsers.shutdown(wait=False, cancel_futures=True)
        self._searchers.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self.documents.close()
        self.statements.close()
        self.indexes.close()
        self.model_threads.close()


def _lighten(call: HttpCall) -> None:
    """Let go of what a call holds that waits to be written: clients say how much that is."""
    call.error = None
    call.releases.clear()
    call.warnings, call.verdicts, call.hops = [], [], ()
    call.path, call.surface = call.path[:MAX_PATH], ""
    if len(call.usages) > 1 and all(one.done() for one in call.running):
        usages = call.usages
        call.usages = [
            Usage(
                prompt_tokens=sum(one.prompt_tokens for one in usages),
                completion_tokens=sum(one.completion_tokens for one in usages),
                cached_tokens=sum(one.cached_tokens for one in usages),
            )
        ]


def get_service(request: HttpRequest) -> Service:
    """The service of the app that `request` came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def new_id(prefix: str) -> str:
    """A fresh id for a reply."""
    return f"{prefix}-{os.urandom(16).hex()}"


def now_s() -> int:
    """Wall-clock seconds, for the `created` field only."""
    return int(time.time())
