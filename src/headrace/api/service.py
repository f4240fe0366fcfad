"""What the endpoints share: the handler chain, keys, the store, memory for bodies, and their counters."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace
from starlette.requests import Request as HttpRequest

from headrace.api.http.api_keys import KeyRing
from headrace.api.http.call_context import HttpCall
from headrace.api.http.request_log import RequestLog
from headrace.config.settings import Settings
from headrace.errors import Overloaded, StoreError
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
from headrace.storage.aliases import Alias, Aliases
from headrace.storage.database import Database
from headrace.tasks.guards.handler import GuardHandler
from headrace.tasks.guards.settings import read_guards
from headrace.tasks.moderation import read_moderation
from headrace.telemetry.request_metrics import ModelMetrics
from headrace.workers.model_manager import ModelManager

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.workers.model_entry import ModelEntry

CLIENT_GONE = 499  # never sent, only counted and logged

T = TypeVar("T")

BODIES_LIMIT_BYTES = 256 * 2**20  # of all bodies that are being read or parsed
SHARE = 0.5  # of it, that one key (without keys: one address) may take
SMALL_BYTES = 64 * 1024
"""Of each body these bytes do not count, so large bodies never keep small ones out: their number is limited,
and the connection holds as much in any case."""


class Service:
    """Made before the event loop runs; then it belongs to the loop."""

    def __init__(self, models: ModelManager, settings: Settings) -> None:
        self.models = models
        self.settings = settings
        self.database = Database(settings.store_file)
        self.keys = KeyRing(settings, self.database)
        self.metrics = ModelMetrics()
        """Counters of HTTP calls; those of models are in `metrics_of`."""
        self.threads = StoreThreads()
        self.responses = ResponseStore(self.database, self.threads)
        self._parsers = ThreadPoolExecutor(2, thread_name_prefix="headrace-parse")
        self._model_threads = ModelThreads(2)
        self._sources = ManagedModels(models)
        self.local = LocalHandler(self._sources, self._model_threads, settings.tool_format)
        self.gate = AdmissionGate(
            settings.max_concurrent_requests, settings.max_queued_tokens, lambda: self.local.queued_tokens
        )
        self.gate.starting = models.default.model is None
        inner = ModelRunner(self.local, self._sources, self._model_threads)
        self.guards = GuardHandler(self.local, read_guards(settings.guards), inner)
        self.moderation = read_moderation(settings.moderation)
        self.handler: Handler = build_chain(self.guards, self.gate)
        self.runner = ModelRunner(self.handler, self._sources, self._model_threads)
        self._log = RequestLog(self.database, self.metrics) if settings.log_requests else None
        self.bodies = BodyMemory()
        self.aliases: Mapping[str, Alias] = {}
        """Names that clients gave to models; requests of every API may use them."""
        self.read_aliases()

    def read_aliases(self) -> None:
        """Take over the store's aliases. Reads the store: not for the event loop."""
        try:
            self.aliases = {alias.name: alias for alias in Aliases(self.database).all()}
        except StoreError:  # the server starts without them
            self.aliases = {}

    def find(self, name: str | None, call: CallContext | None = None) -> ModelEntry:
        """The served model of that name, or of an alias; None is the default. ModelNotFound. What an alias
        says besides is for Ollama's API alone: a warning of `call` says so."""
        alias = None if name is None or self.models.serves(name) else self.aliases.get(name)
        if alias is None:
            return self.models.find(name)
        if call is not None and (alias.system is not None or alias.parameters):
            call.warn("model", "the system prompt and options of this alias hold for Ollama's API only")
        return self.models.find(alias.target)

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

    def metrics_of(self, name: str) -> ModelMetrics:
        """The counters of a model's requests."""
        return self._sources.metrics_of(name)

    async def open(self, request: InferenceRequest, call: CallContext) -> OpenStream:
        """Start a request; raises what refuses it."""
        if request.model is not None and request.model in self.aliases:
            request = replace(request, model=self.find(request.model, call).name)
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
        if self._log is not None and call.method == "POST":
            self._log.add(call, call.model or self.models.default.name)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` on the store in a thread."""
        return await self.threads.run(work)

    async def parse_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` that parses a large body in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._parsers, work)

    async def prepare_in_thread(self, model: LoadedModel, work: Callable[[], T]) -> T:
        """Run `work` with a model's template or tokenizer in a thread of that model."""
        return await self._model_threads.run(model, work)

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
        if self._log is not None:
            self._log.close()
        self.keys.close()
        self.database.close()
        self.threads.close()
        self._parsers.shutdown(wait=False, cancel_futures=True)
        self._model_threads.close()


def get_service(request: HttpRequest) -> Service:
    """The service of the app that `request` came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def new_id(prefix: str) -> str:
    """A fresh id for a reply."""
    return f"{prefix}-{uuid.uuid4().hex}"


def now_s() -> int:
    """Wall-clock seconds, for the `created` field only."""
    return int(time.time())


class BodyMemory:
    """Counts bytes of bodies, of all clients and of each."""

    def __init__(self) -> None:
        self._all = 0
        self._of_client = Counter[str]()

    def hold(self, call: HttpCall, size: int) -> None:
        """Note that `size` bytes of the call's body have arrived; Overloaded where that is too much."""
        more = max(0, size - SMALL_BYTES) - call.body_bytes
        if more <= 0:
            return
        held = self._of_client[call.client]
        if self._all + more > BODIES_LIMIT_BYTES:
            raise _too_much(f"bodies of {self._all:,} bytes", BODIES_LIMIT_BYTES)
        if held + more > BODIES_LIMIT_BYTES * SHARE:
            raise _too_much(f"bodies of {held:,} bytes from this client", int(BODIES_LIMIT_BYTES * SHARE))
        self._all += more
        self._of_client[call.client] += more
        call.body_bytes += more

    def release(self, call: HttpCall) -> None:
        """The call's body is not needed any more."""
        self._all -= call.body_bytes
        self._of_client[call.client] -= call.body_bytes
        if not self._of_client[call.client]:
            del self._of_client[call.client]
        call.body_bytes = 0


def _too_much(held: str, limit: int) -> Overloaded:
    return Overloaded(
        f"{held} are being read, at most {limit:,} may be at a time: try again later", reason="body_bytes"
    )
