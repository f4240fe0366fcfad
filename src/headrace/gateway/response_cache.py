"""Answers by key: an index in memory over a file, bounded by bytes, in shares of those who use it.

Beyond `limit_bytes` the least recently used answer of the key with most bytes goes, so one key that fills the
cache drives out its own answers. Age counts on a clock that never goes back: see `CacheClock`. What fails on
the disk costs hits and nothing else; the first failure in a row is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from headrace.errors import StoreError
from headrace.gateway.answer_record import AnswerRecord, digest_of, unpacked
from headrace.gateway.typed_values import NotEncodable
from headrace.storage.cached_answers import CachedAnswers, Saving, StoredAnswer
from headrace.storage.database import Database

LOG = logging.getLogger("headrace.cache")
OVERHEAD_BYTES = 1024  # of an answer, in the file and in memory
MAX_PENDING = 256  # writes that wait; more are left out
PAUSE_S = 30.0  # without writes, after one has failed
FLUSH_HITS = 64  # after which their use is written

T = TypeVar("T")


class CacheClock:
    """Seconds that never go back, not over restarts either: wall time at the start, or the latest time that
    was written if that is later, and from there on the monotonic clock. A wall clock that is set while this
    runs changes nothing; one that is behind at a start makes answers age by what this runs only."""

    def __init__(
        self,
        last_s: float,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start_s = max(last_s, wall())
        self._from_s, self._monotonic = monotonic(), monotonic

    def now_s(self) -> float:
        """The time."""
        return self._start_s + self._monotonic() - self._from_s


class ResponseCache:
    """Belongs to the event loop, but for its thread, in which the file is read and written."""

    def __init__(
        self,
        database: Database,
        *,
        limit_bytes: int,
        ttl_s: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes, self.ttl_s = limit_bytes, ttl_s
        self.max_answer_bytes = min(4 << 20, limit_bytes // 16)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Of each model (name, what): exact, near, draft, miss, kept, evicted, expired, audited, mismatch,
        failed."""
        self.saved_tokens: Counter[str] = Counter()
        self.dropped: list[Callable[[StoredAnswer], None]] = []
        """Called with each answer that is forgotten."""
        self._answers = CachedAnswers(database)
        self._index: OrderedDict[bytes, StoredAnswer] = OrderedDict()
        self._tenants: dict[bytes, OrderedDict[bytes, StoredAnswer]] = {}
        self._bytes: Counter[bytes] = Counter()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-cache")
        self._pending = 0
        self._used: dict[bytes, StoredAnswer] = {}
        self._savings: dict[tuple[str, str], Saving] = {}
        self._monotonic, self._failed_s, self._is_failing = monotonic, -PAUSE_S, False
        stored, last_s = self._read()
        self.clock = CacheClock(last_s, wall=wall, monotonic=monotonic)
        for answer in stored:
            self._take(answer)

    def _read(self) -> tuple[Sequence[StoredAnswer], float]:
        if not self._answers.database.exists:
            return (), 0.0
        try:
            return self._answers.all(), self._answers.last_s()
        except StoreError as error:
            self._failed(error)
            return (), 0.0

    @property
    def bytes(self) -> int:
        """All that is kept, about."""
        return self._bytes.total()

    @property
    def entries(self) -> Iterable[StoredAnswer]:
        """Every answer, the least recently used first."""
        return self._index.values()

    def __len__(self) -> int:
        return len(self._index)

    def find(self, key: bytes) -> StoredAnswer | None:
        """The answer of that key, unless it is too old."""
        found = self._index.get(key)
        if found is not None and not 0 <= self.clock.now_s() - found.created_s <= self.ttl_s:
            self.forget([found], "expired")
            return None
        return found

    def body(self, answer: StoredAnswer) -> AnswerRecord | None:
        """The answer itself, from the file; None where it is gone or damaged. In the thread."""
        try:
            found = self._answers.body(answer.key)
            return None if found is None else unpacked(found[1], found[0])
        except (StoreError, NotEncodable) as error:
            LOG.warning("a kept answer cannot be read: %s", error)
            return None

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in the thread of the file."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work)

    def hit(self, answer: StoredAnswer, kind: str) -> None:
        """An answer was given again."""
        answer.used_s, answer.hits = self.clock.now_s(), answer.hits + 1
        self._index.move_to_end(answer.key)
        self._tenants[answer.tenant].move_to_end(answer.key)
        self.counts[answer.model, kind] += 1
        self.saved_tokens[answer.model] += answer.tokens
        self._used[answer.key] = answer
        self._save(answer.model, kind, answer.tokens, answer.nano_usd or 0)
        if len(self._used) >= FLUSH_HITS:
            self.flush()

    def shared(self, model: str, tokens: int, nano_usd: int) -> None:
        """A request has got the answer of one that ran beside it."""
        self.counts[model, "shared"] += 1
        self.saved_tokens[model] += tokens
        self._save(model, "shared", tokens, nano_usd)

    def _save(self, model: str, kind: str, tokens: int, nano_usd: int) -> None:
        before = self._savings.get((model, kind), Saving(model, kind, 0, 0, 0))
        self._savings[model, kind] = Saving(
            model, kind, before.hits + 1, before.tokens + tokens, before.nano_usd + nano_usd
        )

    def add(self, answer: StoredAnswer, body: bytes) -> bool:
        """Keep an answer; False where it is too large or the disk is behind."""
        answer.size_bytes = len(body) + len(answer.vector) + OVERHEAD_BYTES
        is_paused = self._monotonic() - self._failed_s < PAUSE_S
        if len(body) > self.max_answer_bytes or self._pending >= MAX_PENDING or is_paused:
            return False
        self._remove(answer.key)
        self._take(answer)
        self.counts[answer.model, "kept"] += 1
        now_s, digest = self.clock.now_s(), digest_of(body)
        self._write(lambda: self._answers.add(answer, digest, body, now_s), [answer.key])
        self._evict()
        return answer.key in self._index

    def _take(self, answer: StoredAnswer) -> None:
        self._index[answer.key] = answer
        self._tenants.setdefault(answer.tenant, OrderedDict())[answer.key] = answer
        self._bytes[answer.tenant] += answer.size_bytes

    def _remove(self, key: bytes) -> StoredAnswer | None:
        found = self._index.pop(key, None)
        if found is not None:
            own = self._tenants[found.tenant]
            del own[key]
            self._bytes[found.tenant] -= found.size_bytes
            if not own:
                del self._tenants[found.tenant], self._bytes[found.tenant]
            self._used.pop(key, None)
            for action in self.dropped:
                action(found)
        return found

    def _evict(self) -> None:
        """Back within the limit: from the key with most bytes."""
        gone: list[StoredAnswer] = []
        left = self.bytes
        counts = Counter(self._bytes)
        marked = {tenant: iter(own.values()) for tenant, own in self._tenants.items()}
        while left > self.limit_bytes:
            [(tenant, _)] = counts.most_common(1)
            one = next(marked[tenant])
            gone.append(one)
            counts[tenant] -= one.size_bytes
            left -= one.size_bytes
        if gone:
            self.forget(gone, "evicted")

    def forget(self, answers: Sequence[StoredAnswer], why: str) -> None:
        """Drop answers, here and in the file."""
        for one in answers:
            self._remove(one.key)
            self.counts[one.model, why] += 1
        keys = [one.key for one in answers]
        self._write(lambda: self._answers.remove(keys), ())

    def forget_model(self, identity: bytes) -> int:
        """Drop all answers of what was found to answer otherwise."""
        found = [one for one in self._index.values() if one.identity == identity]
        self.forget(found, "purged")
        return len(found)

    def flush(self) -> None:
        """Write what is known of uses."""
        used, savings = list(self._used.values()), list(self._savings.values())
        if used or savings:
            self._used, self._savings = {}, {}
            now_s = self.clock.now_s()
            self._write(lambda: self._answers.used(used, savings, now_s), ())

    def _write(self, work: Callable[[], None], keys: Sequence[bytes]) -> None:
        """In the thread, in order; what cannot be written is forgotten here, too."""
        self._pending += 1
        loop = _running_loop()

        def write() -> None:
            error: StoreError | None = None
            try:
                work()
            except StoreError as failure:
                error = failure
            if loop is not None and not loop.is_closed():
                with suppress(RuntimeError):  # it has just been closed
                    loop.call_soon_threadsafe(self._written, keys, error)

        self._thread.submit(write)

    def _written(self, keys: Sequence[bytes], error: StoreError | None) -> None:
        self._pending -= 1
        if error is None:
            self._is_failing = False
            return
        self._failed(error)
        for key in keys:
            self._remove(key)

    def _failed(self, error: StoreError) -> None:
        self.counts["", "failed"] += 1
        self._failed_s = self._monotonic()
        if not self._is_failing:
            LOG.warning("answers are not kept for now: %s", error.message)
        self._is_failing = True

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush()
        self._thread.shutdown(wait=True)
        self._answers.database.close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
