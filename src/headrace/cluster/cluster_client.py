"""Engine client for several replicas of one model: routes, moves requests when one ends, scales."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from headrace.cluster.cost_model import CostModel
from headrace.cluster.prefix_index import GROUP_TOKENS, group_keys
from headrace.cluster.replica_info import ReplicaInfo, replica_info, summed_status
from headrace.cluster.replica_link import ReplicaLink
from headrace.cluster.replica_pool import ReplicaPool, ReplicaStart
from headrace.cluster.request_moves import Placed, RequestMoves
from headrace.cluster.router import Capacity, RoutedRequest, Router, RoutingChoice
from headrace.config.cluster_settings import ClusterSettings
from headrace.elastic.attainment import Attainment, LatencyTargets
from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import EngineLimits, EngineState, EngineStatus, MemoryPlan
from headrace.engine.request import (
    Delta,
    EngineEvent,
    EngineRequest,
    EventCallback,
    RequestFailed,
    RequestFinished,
    RequestHandle,
)
from headrace.engine.validation import validate_request
from headrace.errors import DeadlineExceeded, EngineStopped, HeadraceError, InvalidRequest
from headrace.workers.delivered import Diverged
from headrace.workers.engine_client import MAX_REPLAYS
from headrace.workers.in_flight import InFlightRequest, cancelled, compiling, computing, repeatable
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import (
    Cancel,
    EventsAck,
    ModelReady,
    PageReport,
    Pause,
    StepEvents,
    Submit,
    SubmitResult,
    read_events,
)

LOG = logging.getLogger("headrace.cluster")

ROUTING_COSTS = CostModel(step_s=1e-3, prefill_s=1e-4, row_s=1e-4, pair_s=1e-9)
"""Until a replica has measured its steps: for replicas of one kind proportions matter, not their size."""
STALE_S = 30.0
"""A replica that has made no step for so long may be faster or slower by now: it counts as the others do, so
that it gets requests and measures anew."""


NO_ADAPTERS = "a model with several replicas takes no adapters yet: serve it without [cluster]"


class ClusterClient:
    """Runs the requests of one model in several worker processes.

    A request whose replica dies, hangs or drains runs again elsewhere with the same seed: what its reader has
    is left out, and the reader sees a pause. One that was at the head of its replica's queue whenever that
    died, MAX_REPLAYS times, fails.
    """

    def __init__(
        self,
        worker: WorkerProcess,
        ready: ModelReady,
        start: ReplicaStart,
        settings: ClusterSettings,
        plan: MemoryPlan,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`closed` is called when all replicas have ended."""
        self._closed = closed
        self.limits: EngineLimits = ready.limits
        self._ready, self._plan = ready, plan
        self._lock = threading.RLock()  # guards the fields below, and the router
        self._open: dict[int, Placed] = {}
        self._numbers: dict[str, int] = {}
        self._pending_choices = 0
        self._router = Router(settings.policy, ROUTING_COSTS, group_tokens=GROUP_TOKENS)
        self._cached: dict[int, list[int]] = {}  # replica -> tokens from its cache, and of prompts
        self._next_number, self._next_id = itertools.count(), itertools.count()
        self._closing = False
        self._attainment = Attainment(
            LatencyTargets(ttft_s=_seconds(settings.ttft_ms), tpot_s=_seconds(settings.tpot_ms))
        )
        self._moves = RequestMoves(
            self,
            shares=settings.launcher == "local",
            page_bytes=plan.kv_bytes // max(1, plan.page_count),
            warm_bytes=settings.warm,
            has_roles=settings.prefill > 0,
            always=settings.disaggregation == "always",
        )
        self._start = start
        self._pool = ReplicaPool(start, settings, self)
        self._pool.adopt(worker, ready)
        self._pool.begin()

    # -- any thread
    # --------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """See `EngineClient.submit`."""
        return self.submit_later(request, sink).result()

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """See `EngineClient.submit_later`."""
        validate_request(
            request,
            vocabulary=self._ready.vocabulary,
            longest=self._ready.longest,
            model_longest=self.limits.model_context_length,
            embedding_size=self.limits.embedding_size,
        )
        if request.adapter:
            raise InvalidRequest(NO_ADAPTERS, param="model")
        request = repeatable(request, self._next_id)
        request_id = request.request_id
        accepted, handle = Future[RequestHandle](), RequestHandle(request_id, self.cancel, self.pause)
        waits = request.constraint is not None
        now_s = time.monotonic()
        self._add(InFlightRequest(request, sink, now_s, now_s, handle, accepted if waits else None))
        if waits:
            accepted.add_done_callback(lambda done: done.cancelled() and self.cancel(request_id))
        else:
            accepted.set_result(handle)
        return accepted

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """Refused: replicas have no adapters."""
        raise InvalidRequest(NO_ADAPTERS, param="model")

    def unload_adapter(self, digest: str) -> None:
        """There is none."""

    def cancel(self, request_id: str) -> None:
        """Cancel a request; no effect if it has ended."""
        with self._lock:
            number = self._numbers.get(request_id)
            if number is None:
                return
            placed = self._open[number]
            placed.item.cancelled = True
            if placed.link is not None:
                placed.link.put(Cancel(number))
                if placed.item.accepted is None and not placed.prefilling:
                    return
            self._end(placed, cancelled(placed.item))
        placed.deliver()

    def pause(self, request_id: str, paused: bool) -> None:
        """Pause or resume a request; no effect if it has ended."""
        with self._lock:
            number = self._numbers.get(request_id)
            if number is None:
                return
            placed = self._open[number]
            placed.item.paused = paused
            if placed.link is not None:
                placed.link.put(Pause(number, paused))

    def status(self) -> EngineStatus:
        """Sums over the replicas; `restarting` while requests wait for a first one."""
        with self._lock:
            pool, items = self._pool, [placed.item for placed in self._open.values()]
            links, failure = pool.links, pool.failure
            state: EngineState = "restarting" if not links and pool.needed else "running"
            sums = summed_status(links, before=self._ready.status)
            return replace(
                sums,
                waiting=max(0, computing(items) + compiling(items) - sums.running),
                page_count=sums.page_count or self._plan.page_count,
                steps=pool.past_steps + sums.steps,
                alive=failure is None and not self._closing,
                state=state if failure is None else "failed",
                restarts=pool.restarts,
                failure=None if failure is None else failure.message,
            )

    @property
    def policy(self) -> str:
        """How requests are routed."""
        return self._router.policy

    def replicas(self) -> list[ReplicaInfo]:
        """All that run."""
        with self._lock:
            return [replica_info(link, self._router, self._cached) for link in self._pool.links]

    @property
    def wanted(self) -> int:
        """How many replicas there should be."""
        return self._pool.wanted

    @property
    def starting(self) -> int:
        """How many replicas are being started."""
        return self._pool.starting

    @property
    def refused(self) -> str | None:
        """Why no more replicas are started, where others still run."""
        return self._pool.refused

    @property
    def problem(self) -> str | None:
        """Why the last replica did not start."""
        return self._pool.problem

    def load(self) -> tuple[int, int]:
        """Requests in flight, and those of them that wait for a replica."""
        with self._lock:
            return len(self._open), sum(placed.link is None for placed in self._open.values())

    def attained(self, now_s: float) -> float | None:
        """The share of the recent requests that kept the targets; None without targets, and with few."""
        if not self._attainment.targets.any:
            return None
        latest_s = now_s - self._attainment.targets.ttft_s
        with self._lock:
            items = [placed.item for placed in self._open.values()]
            overdue = sum(item.first_token_s is None and item.began_s < latest_s for item in items)
            return self._attainment.share(now_s, overdue)

    def drain(self, number: int) -> None:
        """End a replica: it gets no more requests, and what it has goes on elsewhere. InvalidRequest where
        there is none of that number."""
        self._pool.drain(number)

    def replace(self) -> int:
        """Start a new replica for each, one after another, and let the old ones end; how many. Where the
        weights have changed, requests that have begun end with the old ones."""
        return self._pool.replace_all()

    @property
    def has_new_weights(self) -> bool:
        """Whether the model's files are others than those that new replicas get."""
        return self._start.has_changed

    def close(self) -> None:
        """Stop all replicas; requests in flight fail with EngineStopped."""
        with self._lock:
            self._closing = True
        self._pool.close()
        self._closed()
        self._fail_all(EngineStopped("the engine was shut down"))

    def _add(self, item: InFlightRequest) -> None:
        request = item.request
        keys = group_keys(request.prompt, request.cache_salt) if request.cache else ()
        with self._lock:
            if self._pool.failure is not None or self._closing:
                raise self._pool.failure or EngineStopped("the engine is shutting down: start it again")
            if request.request_id in self._numbers:
                raise InvalidRequest(f"request_id '{request.request_id}' is in use", param="request_id")
            self.limits.check_room(self._pending_choices, request.params.n)
            number = next(self._next_number)
            placed = Placed(item, RoutedRequest(number, len(request.prompt), keys, request.account))
            self._open[number], self._numbers[request.request_id] = placed, number
            self._pending_choices += request.params.n
            self.place(placed, request)

    @property
    def router(self) -> Router:
        """With the lock held."""
        return self._router

    @property
    def open(self) -> Mapping[int, Placed]:
        """The requests in flight; with the lock held."""
        return self._open

    def link(self, number: int) -> ReplicaLink | None:
        """The replica of that number, None where there is none."""
        return self._pool.find(number)

    def place(self, placed: Placed, run: EngineRequest, target: RoutingChoice | None = None) -> None:
        """With the lock held: send it to a replica (`target`, or the one that the router chooses), or let it
        wait for one."""
        item, number = placed.item, placed.routed.id
        item.rank = time.monotonic() + item.request.priority * self.limits.ageing_s, number
        placed.link = None
        if all(replica.draining for replica in self._router.replicas.values()):
            self._pool.wake()
            return
        begun = bool(self._moves.of_other_weights(placed))
        if target is None and not begun and self._moves.prefill(placed, run):
            link = placed.link
        else:
            choice = target or self._choice(placed)
            self._router.sent(placed.routed, choice)
            link = placed.link = self._pool.link(choice.replica)
            link.put(Submit(number, run, item.accepted is not None))
        if item.paused and link is not None:
            link.put(Pause(number, True))

    def _choice(self, placed: Placed) -> RoutingChoice:
        """With the lock held, and a replica that takes requests. Where its reader has tokens, one with the
        weights that gave them, even if that drains; another one only where there is none."""
        roles, apart = self._moves.others("decode"), self._moves.of_other_weights(placed)
        free = {number for number, replica in self._router.replicas.items() if not replica.draining}
        if free - roles - apart:
            return self._router.choose(placed.routed, roles | apart)
        same = [] if not apart else [one for one in self._router.replicas if one not in apart]
        return RoutingChoice(same[0], 0, 0.0) if same else self._router.choose(placed.routed, roles)

    def _end(self, placed: Placed, events: list[EngineEvent]) -> None:
        """With the lock held: the request ends with these events."""
        self._forget(placed)
        placed.outbox.append(events)

    def _forget(self, placed: Placed) -> None:
        """With the lock held: the request has ended."""
        number, request = placed.routed.id, placed.item.request
        del self._open[number], self._numbers[request.request_id]
        self._moves.forget(placed)
        self._router.ended(number)
        self._pending_choices -= request.params.n

    # -- the pool's and the links' threads
    # -------------------------------------------------------------------------------

    def joined(self, link: ReplicaLink) -> None:
        """A replica is ready: it gets what waits."""
        capacity = Capacity(
            max_batch_tokens=self._plan.step_tokens,
            max_num_seqs=self.limits.max_num_seqs,
            kv_tokens=self._plan.page_count * self._plan.page_tokens,
        )
        with self._lock:
            self._router.add(link.number, capacity)
            self._cached[link.number] = [0, 0]
            self._moves.warm(link)
            for placed in list(self._open.values()):
                if placed.link is None:
                    self.place(placed, placed.item.next_run())

    def draining(self, link: ReplicaLink) -> None:
        """A replica gets no more requests."""
        with self._lock:
            if link.number in self._router.replicas:
                self._router.drain(link.number)

    def leave(self, link: ReplicaLink) -> None:
        """A draining replica has had time to end its requests: they go on elsewhere."""
        with self._lock:
            self._moves.leave(link)

    def leaving(self, link: ReplicaLink) -> None:
        """See `ReplicaEvents`: it drains."""
        LOG.warning("replica %d was asked to end where it runs: it drains", link.number)
        with suppress(InvalidRequest):  # it has ended already
            self._pool.drain(link.number)

    def must_stay(self, link: ReplicaLink) -> bool:
        """Whether a reader has tokens of weights that no other replica has."""
        same = [one for one in self._pool.links if one is not link and one.generation == link.generation]
        with self._lock:
            return not same and any(
                placed.link is link and placed.item.output.tokens for placed in self._open.values()
            )

    def works(self, link: ReplicaLink) -> bool:
        """Whether a replica has requests to compute."""
        with self._lock:
            return any(placed.link is link and not placed.item.paused for placed in self._open.values())

    def end_late(self) -> None:
        """Fail the requests that wait for a replica and whose deadline has passed."""
        now_s = time.monotonic()
        with self._lock:
            self._forget_old_costs(now_s)
            self._moves.transfers.expire(now_s)
            late = [one for one in self._open.values() if one.link is None and one.item.is_late(now_s)]
            for placed in late:
                error = DeadlineExceeded("the request's deadline has passed: allow more time")
                self._end(placed, [RequestFailed(error)])
        for placed in late:
            placed.deliver()

    def failed(self, error: HeadraceError) -> None:
        """No replica can be started any more."""
        self._fail_all(error)

    def _forget_old_costs(self, now_s: float) -> None:
        """With the lock held."""
        for number, replica in self._router.replicas.items():
            link = self._pool.find(number)
            if replica.costs is not None and link is not None and now_s - link.computed_s > STALE_S:
                self._router.measured(number, None)

    def _learn(self, link: ReplicaLink, status: EngineStatus) -> None:
        """What a replica publishes of its steps. One that makes none publishes what it measured before."""
        if status.step_costs is None or time.monotonic() - link.computed_s > STALE_S:
            return
        costs = CostModel.of(status.step_costs)
        with self._lock:
            known = self._router.replicas.get(link.number)
            if known is not None and costs.is_possible and known.costs != costs:
                self._router.measured(link.number, costs)

    def took(self, link: ReplicaLink, message: StepEvents) -> None:
        """See `ReplicaEvents`."""
        self._learn(link, message.status)
        for number, batch in message.batches:
            events = read_events(batch)
            placed = self._open.get(number)
            if placed is not None and events:
                with self._lock:  # the request moves before these events or after them
                    self._take(link, placed, events)
                placed.deliver()
        if message.batches:
            link.put(EventsAck(message.status.steps))

    def moved(self, link: ReplicaLink, report: PageReport) -> None:
        """See `ReplicaEvents`."""
        with self._lock:
            self._moves.took(link, report)

    def answered(self, link: ReplicaLink, answer: SubmitResult) -> None:
        """See `ReplicaEvents`."""
        placed = self._open.get(answer.number)
        if placed is None or placed.link is not link or placed.item.accepted is None:
            return
        if answer.error is None:
            placed.item.accept()
            return
        with self._lock:
            if self._open.get(answer.number) is not placed:  # it was cancelled at this moment
                return
            self._forget(placed)
        placed.item.refuse(answer.error)

    def lost(self, link: ReplicaLink, how: str) -> None:
        """See `ReplicaEvents`: its requests go on elsewhere."""
        ended: list[Placed] = []
        error = EngineStopped(f"the model's worker process {how} before this reply ended: send it again")
        with self._lock:
            if link.number in self._router.replicas:
                self._router.remove(link.number)
            self._cached.pop(link.number, None)
            self._pool.lost(link)
            if self._closing:
                return
            self._moves.transfers.lost(link)
            moved = [placed for placed in self._open.values() if placed.link is link]
            heads = sorted((one for one in moved if not one.item.advanced), key=lambda one: one.item.rank)
            for placed in heads[: self.limits.max_num_seqs] if not link.closing else ():
                placed.item.deaths += 1
            for placed in moved:
                item, number = placed.item, placed.routed.id
                placed.link = None
                item.deaths = 0 if item.advanced else item.deaths
                if item.cancelled or item.deaths > MAX_REPLAYS:
                    self._end(placed, cancelled(item) if item.cancelled else [RequestFailed(error)])
                    ended.append(placed)
                else:
                    self._router.ended(number)
                    self._moves.forget(placed)
                    self.place(placed, item.next_run())
        if not link.closing:
            LOG.error("replica %d %s: %d requests go on elsewhere", link.number, how, len(moved) - len(ended))
        for placed in ended:
            placed.deliver()

    def _take(self, link: ReplicaLink, placed: Placed, events: list[EngineEvent]) -> None:
        """With the lock held: what of a replica's events the reader gets."""
        number, done = placed.routed.id, events[-1]
        if self._open.get(number) is not placed or placed.link is not link:
            return
        if isinstance(done, RequestFailed) and isinstance(done.error, EngineStopped):
            return  # its process is about to end, which is handled there
        if placed.prefilling:  # for another replica: the token is for nobody
            if isinstance(done, RequestFinished | RequestFailed):
                self._moves.prompt_ended(placed)
            return
        self._note(placed, events)
        events = self._new_events(link, number, placed.item, events)
        if not events:
            return
        placed.item.advanced = True
        self._pool.progressed()
        done, placed.generation = events[-1], link.generation
        if isinstance(done, RequestFinished) and self._attainment.targets.any:
            timing, tokens = done.timing, placed.item.output.tokens // placed.item.request.params.n
            kept = self._attainment.targets.kept(timing.first_token_s, timing.total_s, tokens)
            self._attainment.note(time.monotonic(), kept)
        if isinstance(done, RequestFinished) and placed.moves:
            events[-1] = replace(done, moves=tuple(placed.moves))
        placed.outbox.append(events)
        if isinstance(done, RequestFinished | RequestFailed):
            self._forget(placed)

    def _note(self, placed: Placed, events: list[EngineEvent]) -> None:
        """Of what a replica sent, what routing and status want to know."""
        if isinstance(events[0], Delta):
            self._router.first_token(placed.routed.id)
        done = events[-1]
        if isinstance(done, RequestFinished) and placed.link is not None:
            sums = self._cached.get(placed.link.number, [0, 0])
            sums[0] += done.usage.cached_tokens
            sums[1] += done.usage.prompt_tokens

    @staticmethod
    def _new_events(
        link: ReplicaLink, number: int, item: InFlightRequest, events: list[EngineEvent]
    ) -> list[EngineEvent]:
        try:
            return item.take(events)
        except Diverged:
            link.put(Cancel(number))
            message = (
                "this reply's replica ended, and another one gave another text: has the model changed? "
                "Send it again"
            )
            LOG.error("request %s: %s", item.request.request_id, message)
            return [RequestFailed(EngineStopped(message))]

    def _fail_all(self, error: HeadraceError) -> None:
        with self._lock:
            every = list(self._open.values())
            for placed in every:
                self._end(placed, [RequestFailed(error)])
        for placed in every:
            placed.deliver()


def _seconds(milliseconds: float | None) -> float:
    """Of a target; infinite without."""
    return math.inf if milliseconds is None else milliseconds / 1e3
