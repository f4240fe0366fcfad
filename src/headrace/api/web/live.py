"""GET /v1/live: figures of the running server as a stream, one event a second."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.admin.metrics import STARTED_S, model_reports
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.event_stream import MEDIA_TYPE, sse_event, wait_for_disconnect
from headrace.api.service import Service, get_service
from headrace.cluster.cluster_client import ClusterClient
from headrace.errors import NotEnabled, Overloaded
from headrace.executors.cpu_cache import cache_bytes
from headrace.executors.machine_limits import Limits, known_limits
from headrace.inference.accounts import RateLimited
from headrace.loading.loader import usable_cores
from headrace.loading.roofline import peak_of
from headrace.telemetry.histogram import SECONDS
from headrace.telemetry.live import (
    LiveFigures,
    MachinePeaks,
    ModelMemory,
    ModelSizes,
    WeightUse,
    live_model,
)

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

PERIOD_S: Final = 1.0
MAX_READERS: Final = 64
MAX_READERS_OF_CLIENT: Final = 8


@Endpoint("GET", "/v1/live", hidden=True)  # hidden: the document's clients would read it without an end
async def live(http: HttpRequest) -> Response:
    """Figures of all models, once a second, for any key, as /metrics."""
    service = get_service(http)
    if service.settings.disable_metrics:
        raise NotEnabled("/v1/live is switched off by the setting disable_metrics")
    state = http.app.state
    if not hasattr(state, "live_feed"):
        limits = await service.run_in_thread(lambda: _limits(service))
        if not hasattr(state, "live_feed"):  # another reader may have been quicker
            state.live_feed = LiveFeed(service, limits)
    feed = state.live_feed
    assert isinstance(feed, LiveFeed)
    call = call_of(http)
    feed.check_room(call)
    return LiveReply(feed, call)


class LiveFeed:
    """Renders the figures at most once a period, for all readers. Lives on the event loop."""

    def __init__(self, service: Service, limits: Limits | None) -> None:
        self._service = service
        self._limits = limits
        self._cache_bytes = cache_bytes()
        self._readers: Counter[str] = Counter()
        self._rendered = b""
        self._rendered_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the server stops."""
        return self._service.gate.draining

    def check_room(self, call: HttpCall) -> None:
        """RateLimited or Overloaded where there are too many readers."""
        if self._readers[call.client] >= MAX_READERS_OF_CLIENT:
            raise RateLimited(
                f"{MAX_READERS_OF_CLIENT} streams of /v1/live are open, the most for one client: close one",
                retry_after_s=5.0,
                reason="live_streams",
            )
        if self._readers.total() >= MAX_READERS:
            raise Overloaded(f"{MAX_READERS} streams of /v1/live are open, the most: try again later")

    @contextmanager
    def reader(self, call: HttpCall) -> Generator[None]:
        """Counts a reader."""
        self._readers[call.client] += 1
        try:
            yield
        finally:
            self._readers[call.client] -= 1
            self._readers += Counter()  # forgets those that have none

    def event(self) -> bytes:
        """The event of now."""
        now_s = time.monotonic()
        if now_s - self._rendered_s > PERIOD_S / 2:
            self._rendered, self._rendered_s = sse_event(self._figures()), now_s
        return self._rendered

    def _figures(self) -> LiveFigures:
        service = self._service
        entries = {entry.name: entry for entry in service.models.entries}
        models = [live_model(report, _sizes(entries[report.name].model)) for report in model_reports(service)]
        return LiveFigures(
            started_s=STARTED_S,
            now_s=time.time(),
            bounds_s=SECONDS,
            memory_bytes=service.models.policy.memory_bytes,
            replies=service.metrics.replies,
            models=models,
            machine=self._machine(),
        )

    def _machine(self) -> MachinePeaks | None:
        """The machine's limits, in the arithmetic of the default model."""
        limits, default = self._limits, self._service.models.default.model
        if limits is None:
            return None
        peak = 0.0 if default is None else peak_of(default.plan.weight_format, limits)
        return MachinePeaks(limits.cpu, limits.read_bytes_per_s, peak, self._cache_bytes)


class LiveReply(Response):
    """The stream, until the client leaves or the server stops."""

    def __init__(self, feed: LiveFeed, call: HttpCall) -> None:
        super().__init__(
            media_type=MEDIA_TYPE, headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]  # it has no end yet
        self._feed, self._call = feed, call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an event a second. A reader that is slow misses some."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            with self._feed.reader(self._call):
                while not gone.done() and not self._feed.is_over:
                    await send({"type": "http.response.body", "body": self._feed.event(), "more_body": True})
                    await asyncio.wait((gone,), timeout=PERIOD_S)
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _sizes(model: LoadedModel | None) -> ModelSizes:
    if model is None:
        return ModelSizes()
    plan, engine = model.plan, model.engine
    replicas = len(engine.replicas()) if isinstance(engine, ClusterClient) else None
    count = 1 if replicas is None else replicas  # the plan and the limits are of one process
    other = max(0, plan.total_bytes - plan.weights_bytes - plan.kv_bytes)
    return ModelSizes(
        memory=ModelMemory(plan.weights_bytes * count, plan.kv_bytes * count, other * count),
        work=WeightUse(plan.weight_bytes_per_token, plan.operations_per_token),
        max_running=engine.limits.max_num_seqs * count,
        replicas=replicas,
    )


def _limits(service: Service) -> Limits | None:
    """What `headrace bench roofline` has measured here. It reads a file."""
    settings = service.settings
    return known_limits(settings.threads or usable_cores(), settings.cache_folder)
