"""The replicas of one model: starts and ends them, so that there are as many as are needed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.cluster.replica_link import ReplicaEvents, ReplicaLink, ReplicaRole
from headrace.config.cluster_settings import ClusterSettings
from headrace.errors import EngineStopped, HeadraceError, InvalidRequest
from headrace.workers.engine_client import CRASH_WINDOW_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_CRASHES
from headrace.workers.process import WorkerProcess
from headrace.workers.protocol import ModelReady

LOG = logging.getLogger("headrace.cluster")

LOOK_S = 0.1
MOVE_S = 10.0
"""Replies that a draining replica has not ended within `drain_s` go on elsewhere, with the pages of their
prompts where these have come there within so long."""
LONG_STEPS = 10  # of the longest step: a replica that is silent for so long hangs
BUSY_REQUESTS = 1.0
"""Requests in flight per place of a replica above which another one is started."""


class ReplicaRefused(HeadraceError):
    """A replica would have other weights than the others."""

    remedy = "Run `headrace cluster replace`, or put the old weights back."


class ReplicaStart(Protocol):
    """Starts a replica, as `workers.engine_client.Start`; ReplicaRefused where it has other weights than the
    first one, unless these were accepted since. `accept` gives what takes that back."""

    def __call__(self, adopt: Callable[[WorkerProcess], None], /) -> tuple[WorkerProcess, ModelReady]: ...
    def accept(self) -> Callable[[], None]: ...


class PoolOwner(ReplicaEvents, Protocol):
    """Whose replicas they are."""

    def joined(self, link: ReplicaLink) -> None: ...
    def draining(self, link: ReplicaLink) -> None: ...
    def load(self) -> tuple[int, int]: ...
    def works(self, link: ReplicaLink) -> bool: ...
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
        self._wanted = settings.replicas
        self._needed_s = time.monotonic()  # when more than the fewest were needed last
        self._crashes: deque[float] = deque()
        self._starting: WorkerProcess | None = None
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-replicas", daemon=True)
        self._retry_s = 0.0  # when the next one may be started after some have died
        self.failure: HeadraceError | None = None
        self.refused: str | None = None
        self.restarts = self.past_steps = 0

    @property
    def links(self) -> list[ReplicaLink]:
        """All that run."""
        with self._lock:
            return list(self._links.values())

    @property
    def needed(self) -> bool:
        """Whether there should be one."""
        return self._wanted > 0

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
        self._wanted = max(self._wanted, 1)
        self._wake.set()

    def progressed(self) -> None:
        """Something new came from a replica: it is worth starting them."""
        self._crashes.clear()

    def adopt(self, process: WorkerProcess, ready: ModelReady, role: ReplicaRole | None = None) -> None:
        """A worker that is ready. Numbers are used again: the smallest that is free. Without a `role` it gets
        the one that is missing."""
        with self._lock:
            number = next(one for one in range(len(self._links) + 1) if one not in self._links)
            role = role or self._missing_role()
            link = self._links[number] = ReplicaLink(number, process, ready, self._owner, role)
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

    def close(self) -> None:
        """End all."""
        self._closing.set()
        self._wake.set()
        with self._lock:
            starting = self._starting
        if starting is not None:
            starting.close()
        if self._thread.is_alive():
            self._thread.join()
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
        missing = self._wanted - len(self._links) + len(self._leaving)
        if missing > 0 and now_s >= self._retry_s and not (self.refused and self._links):
            self._start_one()

    def _check(self, link: ReplicaLink, now_s: float) -> None:
        """End one that drains and is idle, and one that hangs."""
        works = self._owner.works(link)
        leaves_s = self._leaving.get(link.number)
        if leaves_s is not None and (not works or now_s > leaves_s + MOVE_S):
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
        """One more while requests wait, one less when there was no need for some time."""
        settings = self._settings
        in_flight, waiting = self._owner.load()
        links = self.links
        places = sum(link.ready.limits.max_num_seqs for link in links)
        if waiting and not links:
            self._wanted = max(self._wanted, 1)
        settled = bool(links) and len(links) - len(self._leaving) >= self._wanted
        if settled and in_flight > BUSY_REQUESTS * places and self._wanted < settings.most:
            self._wanted += 1
        fewer = self._wanted - 1
        per_link = places / len(links) if links else 0
        if in_flight > fewer * per_link / 2 or waiting:
            self._needed_s = now_s
        elif now_s - self._needed_s > settings.idle_s and fewer >= settings.fewest:
            self._needed_s, self._wanted = now_s, fewer
            staying = [link for link in links if link.number not in self._leaving]
            if len(staying) > fewer:
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
        self._launch()

    def _launch(self, role: ReplicaRole | None = None) -> Exception | None:
        """Start one; why it did not."""
        try:
            process, ready = self._start(self._adopt_starting)
        except Exception as error:
            if not self._closing.is_set():
                LOG.error("a replica did not start: %s", error)
                self.refused = error.message if isinstance(error, ReplicaRefused) else None
                with self._lock:
                    self._crashes.append(time.monotonic())
            return error
        if self._closing.is_set():
            process.close()
            return None
        self.adopt(process, ready, role)
        return None

    def _adopt_starting(self, process: WorkerProcess) -> None:
        with self._lock:
            self._starting = process
        if self._closing.is_set():
            process.close()
