"""What one key may do and use: scopes, requests and tokens per minute, requests at a time, urgency."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import copy

from msgspec.structs import replace

from headrace.config.settings import Settings
from headrace.errors import InvalidRequest, Overloaded
from headrace.storage.keys import KeyLimits, Scope

MINUTE_S = 60.0


class RateLimited(Overloaded):
    """A key has used up its requests, its tokens or its concurrency."""

    status = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"


class ScopeMissing(InvalidRequest):
    """The key is valid and may not do this."""

    remedy = "Use a key with the scope that the message names: `headrace keys add NAME --scope SCOPE`."
    status = 403
    kind = "permission_error"
    code = "missing_scope"


class Bucket:
    """`limit` units per minute, which come back evenly; full at first. What was used can leave a debt."""

    def __init__(self, limit: int, now_s: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at_s = now_s

    @property
    def state(self) -> tuple[float, float]:
        """Units that were there, and when."""
        return self._level, self._at_s

    def restore(self, state: tuple[float, float] | None) -> None:
        """Put it into a state, None: full."""
        self._level, self._at_s = (float(self.limit), self._at_s) if state is None else state

    def level(self, now_s: float) -> float:
        """Units that are there."""
        return min(self.limit, self._level + (now_s - self._at_s) * self.limit / MINUTE_S)

    def take(self, amount: float, now_s: float) -> None:
        """Use units, or with a negative amount give them back."""
        self._level, self._at_s = min(self.limit, self.level(now_s) - amount), now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` units are there."""
        return max(0.0, amount - self.level(now_s)) * MINUTE_S / self.limit


class ReadLimits:
    """Reads (GET and whatever else makes no work) of each client; generous, and apart from its requests."""

    MAX_CLIENTS = 4096  # that are remembered; those that were away longest are forgotten

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}

    def take(self, client: str, per_minute: int) -> None:
        """Count a read; RateLimited where the client has made more than `per_minute`."""
        now_s = self._clock()
        bucket = self._buckets.pop(client, None)
        if bucket is None or bucket.limit != per_minute:
            bucket = Bucket(per_minute, now_s)
        self._buckets[client] = bucket  # the latest is last
        if len(self._buckets) > self.MAX_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        wait_s = bucket.wait_s(1, now_s)
        if wait_s:
            raise RateLimited(
                f"{per_minute:,} reads per minute are allowed: try again in {wait_s:.1f} s, or start the "
                "server with a higher --key-read-rpm",
                retry_after_s=wait_s,
                reason="key_reads",
            )
        bucket.take(1, now_s)


def configured_limits(settings: Settings) -> KeyLimits:
    """The limits that the settings give to each key."""
    return KeyLimits(settings.key_rpm, settings.key_tpm, settings.key_max_concurrency, settings.key_priority)


class Account:
    """The use of one key, or of everybody where the server has no keys. Lives on the event loop."""

    def __init__(
        self,
        name: str,
        limits: KeyLimits,
        *,
        cache_salt: str = "",
        scopes: frozenset[Scope] = frozenset({"admin"}),
        owner: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.cache_salt = cache_salt
        self._scopes = scopes
        self.owner = owner
        """Under which name the store keeps what is this account's, across restarts. It reads the store."""
        self.limits = limits
        self._clock = clock
        self._open = 0
        now_s = clock()
        per_minute, tokens = limits.requests_per_minute, limits.tokens_per_minute
        self._requests = None if per_minute is None else Bucket(per_minute, now_s)
        self._tokens = None if tokens is None else Bucket(tokens, now_s)
        self._kept = 0.0  # of each bucket: a share that is left to others

    is_shared = False
    """Whether several servers count it together: then `enter_shared` and `reserve_shared` do."""

    async def enter_shared(self, held: ExitStack) -> None:
        """`enter` where several servers count together, until `held` is closed."""

    async def reserve_shared(self, tokens: int) -> None:
        """`reserve` where several servers count together."""

    def may(self, scope: Scope) -> bool:
        """Whether its key has the scope; `admin` includes the others."""
        return scope in self._scopes or "admin" in self._scopes

    def require(self, scope: Scope) -> None:
        """Raise ScopeMissing where its key may not."""
        if not self.may(scope):
            raise ScopeMissing(
                f"this needs a key with the scope '{scope}', this one has "
                f"{', '.join(sorted(self._scopes)) or 'none'}: use another key, or make one with "
                f"`headrace keys add NAME --scope {scope}`"
            )

    def bounded_priority(self, priority: int) -> int:
        """The priority that a request gets that asks for `priority`. Lower is more urgent; unless its limits
        say otherwise, an account without the scope `admin` gets 0 at least."""
        lowest = self.limits.priority
        if lowest is None:
            return priority if self.may("admin") else max(priority, 0)
        return max(priority, lowest)

    def for_background(self) -> Account:
        """The same account for work in the background, which leaves half of every minute to requests."""
        twin = copy(self)
        twin.limits = replace(self.limits, concurrency=None)
        twin._kept = 0.5
        return twin

    def enter(self) -> None:
        """Count a request that arrives; RateLimited where it has to wait. Who entered must `leave`."""
        now_s = self._clock()
        most = self.limits.concurrency
        if most is not None and self._open >= most:
            raise RateLimited(
                f"{self._open:,} requests of this key are under way, at most {most:,} may be: "
                "wait for one to end",
                reason="key_concurrency",
            )
        if self._tokens is not None:
            self._check(self._tokens, 1, now_s, "tokens")
        if self._requests is not None:
            self._check(self._requests, 1, now_s, "requests")
            self._requests.take(1, now_s)
        self._open += 1

    def leave(self) -> None:
        """A request that entered has ended."""
        self._open -= 1

    def reserve(self, tokens: int) -> None:
        """Set aside what a request may use at most; RateLimited where it has to wait for that."""
        if self._tokens is None:
            return
        now_s = self._clock()
        self._check(self._tokens, tokens, now_s, "tokens")
        self._tokens.take(tokens, now_s)

    def settle(self, returned: int) -> None:
        """A request has ended: give back what it did not use of what was set aside, or charge the rest."""
        if self._tokens is not None:
            self._tokens.take(-returned, self._clock())

    def headers(self) -> list[tuple[bytes, bytes]]:
        """`x-ratelimit-*` of the limits that there are, as OpenAI's API sends them."""
        now_s = self._clock()
        found: list[tuple[bytes, bytes]] = []
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                remaining = max(0, math.floor(bucket.level(now_s)))
                reset = f"{bucket.wait_s(bucket.limit, now_s):.3f}s"
                for name, value in (("limit", bucket.limit), ("remaining", remaining), ("reset", reset)):
                    found.append((f"x-ratelimit-{name}-{kind}".encode(), str(value).encode()))
        return found

    def _check(self, bucket: Bucket, amount: int, now_s: float, kind: str) -> None:
        # A request beyond the limit itself gets its turn when all of the minute's units are there.
        amount = math.ceil(min(amount + self._kept * bucket.limit, bucket.limit))
        if bucket.level(now_s) >= amount:
            return
        wait_s = bucket.wait_s(amount, now_s)
        raise RateLimited(
            f"this key may use {bucket.limit:,} {kind} per minute and has {bucket.level(now_s):,.0f} left, "
            f"{amount:,} are needed: try again in {wait_s:.1f} s",
            retry_after_s=wait_s,
            reason=f"key_{kind}",
        )
