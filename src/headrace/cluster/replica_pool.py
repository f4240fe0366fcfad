"""The replicas of one model: starts and ends them, so that there are as many as are needed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from headrace.cluster.replica_link import ReplicaEvents, ReplicaLink, ReplicaRole
from headrace.config.cluster_settings import ClusterSettings
from headrace.elastic.autoscaler import Observed, ScalingPolicy, ScalingState, scaled
from headrace.elastic.placement import NoRoom
from headrace.errors import EngineStopped, HeadraceError, InvalidRequest
from headrace.workers.engine_client import CRASH_WINDOW_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_CRASHES
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import ModelReady

LOG = logging.getLogger("headrace.cluster")

LOOK_S = 0.1
MOVE_S = 10.0
"""Replies that a draining replica has not ended within `drain_s` go on elsewhere, with the pages of their
prompts where these have come there within so long."""
NO_ROOM_S = 2.0  # until the next look for room
IN_PLACE_S = 600.0
"""For a new replica in the place of one that has ended."""
LONG_STEPS = 10  # of the longest step: a replica that is silent for so long hangs


class ReplicaRefused(HeadraceError):
    """A replica would have other weights than the others."""

    remedy = "Run `headrace cluster replace`, or put the old weights back."


class ReplicaStart(Protocol):
    """Starts a replica, as `workers.engine_client.Start`; ReplicaRefused where it has other weights than the
    first one, unless these were accepted since. `accept` gives what takes that back. `generation` counts the
    weights that were accepted."""

    def __call__(self, adopt: Callable[[WorkerProcess], None], /) -> tuple[WorkerProcess, ModelReady]: ...
    def accept(self) -> Callable[[], None]: ...
    @property
    def generation(self) -> int: ...
    @property
    def has_changed(self) -> bool: ...


class PoolOwner(ReplicaEvents, Protocol):
    """Whose replicas they are."""

    def joined(self, link: ReplicaLink) -> None: ...
    def draining(self, link: ReplicaLink) -> None: ...
    def load(self) -> tuple[int, int]: ...
    def attained(self, now_s: float) -> float | None: ...
    def works(self, link: ReplicaLink) -> bool: ...
    def must_stay(self, link: ReplicaLink) -> bool: ...
    def leave(self, link: ReplicaLink) -> None: ...
    def end_late(self) -> None: ...
    def failed(self, error: HeadraceError) -> None: ...


class ReplicaPool:
    """One thread starts replicas, looks for those that hang, and decides how many there are.

    Locks are taken in the order owner, pool: nothing here calls the owner with the pool's lock held.
    """

    def __init__(self, start: ReplicaStart, settings: ClusterSettings, owner: PoolOwner) -> None:
        self._start, self._settings, self._owner = start, settings, owner
        self._lock, self._replacing = threading.Lock(), threading.Lock()
        self._links: dict[int, ReplicaLink] = {}
        self._leaving: dict[int, float] = {}  # draining ones, and until when
        self._moving: set[int] = set()  # those of them whose requests are going elsewhere
        self._scaling = ScalingState(settings.replicas, time.monotonic())
        self._policy = ScalingPolicy(
            fewest=settings.fewest, most=settings.most, idle_s=settings.idle_s, met=settings.met
        )
        self._awaited = False  # a request has no replica to go to
        self._places = 1  # of a replica
        self._crashes: deque[float] = deque()
        self._starting: set[WorkerProcess] = set()
        self._starts = 0  # under way
        self._launching: threading.Thread | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-replicas", daemon=True)
        self._retry_s = 0.0  # when the next one may be started after some have died
        self.failure: HeadraceError | None = None
        self.refused: str | None = None
        self.problem: str | None = None  # of the last start
        self.restarts = self.past_steps = 0

    @property
    def links(self) -> list[ReplicaLink]:
        """All that run."""
        with self._lock:
            return list(self._links.values())

    @property
    def wanted(self) -> int:
        """How many there should be."""
        return self._scaling.wanted

    @property
    def starting(self) -> int:
        """How many are being started."""
        return self._starts

    @property
    def needed(self) -> bool:
        """Whether there should be one."""
        return self._scaling.wanted > 0 or self._awaited

    def link(self, number: int) -> ReplicaLink:
        """The replica of that number."""
        with self._lock:
            return self._links[number]

    def find(self, number: int) -> ReplicaLink | None:
        """As `link`; None where there is none."""
        with self._lock:
            return self._links.get(number)

    def begin(self) -> None:
        """Start the others."""
        self._thread.start()

    def wake(self) -> None:
        """A request waits for a replica."""
        self._awaited = True
        self._wake.set()

    def progressed(self) -> None:
        """Something new came from a replica: it is worth starting them."""
        self._crashes.clear()

    def adopt(
        self,
        process: WorkerProcess,
        ready: ModelReady,
        role: ReplicaRole | None = None,
        generation: int = 0,
    ) -> None:
        """A worker that is ready. Numbers are used again: the smallest that is free. Without a `role` it gets
        the one that is missing."""
        with self._lock:
            number = next(one for one in range(len(self._links) + 1) if one not in self._links)
            role = role or self._missing_role()
            link = self._links[number] = ReplicaLink(number, process, ready, self._owner, role, generation)
            self._places = ready.limits.max_num_seqs
        self._owner.joined(link)
        link.start()

    def _missing_role(self) -> ReplicaRole:
        """With the lock held."""
        if not self._settings.prefill:
            return "any"
        roles = [link.role for number, link in self._links.items() if number not in self._leaving]
        return "decode" if roles.count("prefill") >= self._settings.prefill else "prefill"

    def lost(self, link: ReplicaLink) -> None:
        """Its process has ended."""
        with self._lock:
            self._links.pop(link.number, None)
            self._moving.discard(link.number)
            self._leaving.pop(link.number, None)
            self.past_steps += link.status.steps
            if not link.closing and not self._closing.is_set():
                self.restarts += 1
                self._crashes.append(time.monotonic())
        self._wake.set()

    def drain(self, number: int) -> None:
        """Let it end. InvalidRequest where there is none."""
        with self._lock:
            link = self._links.get(number)
            known = ", ".join(map(str, sorted(self._links))) or "none"
        if link is None:
            raise InvalidRequest(f"there is no replica {number}: there are {known}", param="replica")
        self._owner.draining(link)
        with self._lock:
            if self._links.get(number) is link:  # else it has ended meanwhile, and its number is free
                self._leaving.setdefault(number, time.monotonic() + self._settings.drain_s)
        self._wake.set()

    def replace_all(self) -> int:
        """Each is drained when a new one is ready; how many. Waits. EngineStopped where a new one does not
        start: the old ones that are left go on."""
        if not self._replacing.acquire(blocking=False):
            raise InvalidRequest("the replicas are being replaced already: wait for the end of that")
        try:
            take_back, self.refused = self._start.accept(), None
            old = [link for link in self.links if link.number not in self._leaving]
            for done, link in enumerate(old):
                error = self._launch(link.role)
                if isinstance(error, NoRoom) and len(self.links) > 1:
                    error = self._replace_in_place(link)
                if self.failure is not None or self._closing.is_set():
                    raise self.failure or EngineStopped("the engine is shutting down")
                if error is not None:
                    if not done:
                        take_back()
                    raise EngineStopped(
                        f"a new replica did not start: {error}: {done} of {len(old)} are replaced, the "
                        "others go on"
                    )
                if self._links.get(link.number) is link:
                    self.drain(link.number)
            return len(old)
        finally:
            self._replacing.release()

    def _replace_in_place(self, link: ReplicaLink) -> Exception | None:
        """Where there is no room for one more: the old one ends first; the pool's thread starts another."""
        with suppress(InvalidRequest):
            self.drain(link.number)
        while self.find(link.number) is link and not self._closing.is_set():
            time.sleep(LOOK_S)
        self.problem = None
        until_s = time.monotonic() + IN_PLACE_S
        while not self._closing.is_set() and self.failure is None:
            staying = [one for one in self.links if one.number not in self._leaving]
            if len(staying) >= self._scaling.wanted:
                return None
            if self.refused is not None or time.monotonic() > until_s:
                return EngineStopped(self.problem or "it takes too long")
            time.sleep(LOOK_S)
        return None

    def close(self) -> None:
        """End all."""
        self._closing.set()
        self._wake.set()
        with self._lock:
            starting = list(self._starting)
        for process in starting:
            process.close()
        if self._thread.is_alive():
            self._thread.join()
        if self._launching is not None:
            self._launching.join()
        links = self.links
        for link in links:
            link.close()
        for link in links:
            link.join()

    # -- the pool's thread
    # -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(LOOK_S)
            self._wake.clear()
            try:
                self._look()
            except Exception:
                LOG.exception("looking after replicas")

    def _look(self) -> None:
        now_s = time.monotonic()
        self._owner.end_late()
        for link in self.links:
            self._check(link, now_s)
        if self.failure is not None:
            return
        self._scale(now_s)
        is_launching = self._launching is not None and self._launching.is_alive()  # before they are counted
        missing = self._scaling.wanted - len(self._links) + len(self._leaving)
        if missing > 0 and not is_launching and now_s >= self._retry_s and not (self.refused and self._links):
            self._start_one()

    def _check(self, link: ReplicaLink, now_s: float) -> None:
        """End one that drains and is idle, and one that hangs."""
        works = self._owner.works(link)
        leaves_s = self._leaving.get(link.number)
        late = leaves_s is not None and now_s > leaves_s + MOVE_S
        if leaves_s is not None and (late or not works) and not self._owner.must_stay(link):
            link.close()
        elif leaves_s is not None and now_s > leaves_s and link.number not in self._moving:
            self._moving.add(link.number)
            self._owner.leave(link)
        silence_s = max(self._settings.hang_s, LONG_STEPS * link.longest_step_s)
        if not works or link.passing_on or link.status.waits_for_turn:
            link.heard_s = max(link.heard_s, now_s) if not works else link.heard_s
        elif now_s - link.heard_s > silence_s and not link.hung:
            LOG.error("replica %d has made no step for %.1f s: ending it", link.number, now_s - link.heard_s)
            link.hung = True
            link.kill()

    def _scale(self, now_s: float) -> None:
        """As many as `elastic.autoscaler` says; where that is one less, the last one drains."""
        in_flight, waiting = self._owner.load()
        awaited, self._awaited = self._awaited, False
        staying = [link for link in self.links if link.number not in self._leaving]
        seen = Observed(
            now_s=now_s,
            replicas=len(staying),
            places=self._places,
            in_flight=in_flight,
            waiting=max(waiting, int(awaited)),
            attained=self._owner.attained(now_s),
        )
        before = self._scaling.wanted
        self._scaling = scaled(self._scaling, seen, self._policy)
        if self._scaling.wanted < before and len(staying) > self._scaling.wanted:
            self.drain(max(link.number for link in staying))

    def _start_one(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            while self._crashes and now_s - self._crashes[0] > CRASH_WINDOW_S:
                self._crashes.popleft()
            crashes = len(self._crashes)
        if crashes >= MAX_CRASHES and not self._links:
            self.failure = EngineStopped(
                f"the model failed: {crashes} of its worker processes died in a row: see the server's log, "
                "then load the model again or restart the server"
            )
            LOG.error("%s", self.failure.message)
            self._owner.failed(self.failure)
            return
        if crashes > 1:
            self._retry_s = now_s + min(FIRST_PAUSE_S * 2 ** (crashes - 2), LONGEST_PAUSE_S)
        # Meanwhile this thread looks for replicas that hang.
        self._launching = threading.Thread(target=self._launch, name="headrace-start", daemon=True)
        self._launching.start()

    def _launch(self, role: ReplicaRole | None = None) -> Exception | None:
        """Start one; why it did not."""
        generation, mine = self._start.generation, list[WorkerProcess]()
        with self._lock:
            self._starts += 1
        try:
            process, ready = self._start(lambda started: self._adopt_starting(started, mine))
        except Exception as error:
            if not self._closing.is_set():
                self._not_started(error)
            return error
        finally:
            with self._lock:
                self._starting.difference_update(mine)
                self._starts -= 1
        if self._closing.is_set():
            process.close()
            return None
        self.problem = None
        self.adopt(process, ready, role, generation)
        return None

    def _not_started(self, error: Exception) -> None:
        if str(error) != self.problem:
            LOG.error("a replica did not start: %s", error)
        self.problem = str(error)
        self.refused = error.message if isinstance(error, ReplicaRefused) else None
        if isinstance(error, NoRoom):
            self._retry_s = time.monotonic() + NO_ROOM_S
            return
        with self._lock:
            self._crashes.append(time.monotonic())

    def _adopt_starting(self, process: WorkerProcess, mine: list[WorkerProcess]) -> None:
        mine.append(process)
        with self._lock:
            self._starting.add(process)
        if self._closing.is_set():
            process.close()
