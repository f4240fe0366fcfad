"""What an attempt to have a request answered by a target came to, and what asks and hears about its cost."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

AttemptKind = Literal["first", "retry", "failover", "hedge", "audit"]
Billed = Literal["no", "maybe", "yes"]
SO_FAR = "so_far"
"""The one field of a `raw_usage` that is not all: in it is what was reported before the answer broke off."""


class TokenCounts(Struct, frozen=True, kw_only=True):
    """Tokens in disjoint classes: every token is in one of them, and the sum is what was processed.

    `input` was neither read from nor written to a cache; `cache_write_1h` is what Anthropic keeps for an
    hour. `output` leaves out `reasoning`, and both leave out `output_audio`.
    """

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    input_audio: int = 0
    output: int = 0
    reasoning: int = 0
    output_audio: int = 0


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt, ended. `number` counts from 1 within the request.

    `target` is the name in the table of models, `provider` "" for a model of this machine, `provider_model`
    the provider's own name. `billed` says whether the provider charges for it; "maybe" where the connection
    broke after the request was sent. `raw_usage` is the usage object as received, JSON; b"" where there was
    none. `reported_nano_usd` is the cost that the provider itself stated. `processing` is its word for the
    tier, such as "batch" or "priority". `route` is the name that the client asked for.
    """

    request_id: str
    number: int
    kind: AttemptKind
    account: str
    target: str
    provider: str
    provider_model: str
    started_unix_s: float
    elapsed_s: float
    first_content_s: float | None = None
    outcome: str = "ok"
    billed: Billed = "yes"
    tokens: TokenCounts | None = None
    raw_usage: bytes = b""
    reported_nano_usd: int | None = None
    processing: str = "standard"
    route: str = ""
    plausible: TokenCounts | None = None
    """The most that can be right by what was sent and received: `input` of all classes, `output` without
    reasoning, and `reasoning`. None where that is not known."""


class Hold(Struct, frozen=True):
    """Money that is set aside for an attempt. `nano_usd` None: the price is not known.

    `output` are the tokens that a budget lets it write, of all choices and with reasoning; None where no
    budget bounds them.
    """

    id: int
    nano_usd: int | None
    output: int | None = None


class SpendRecorder(Protocol):
    """Sets money aside before an attempt and records what it cost after it. Integer nano-dollars."""

    def bounds(self, *, account: str, target: str, provider: str, model: str, route: str) -> bool:
        """Whether a budget that is kept exactly covers such an attempt: then `most` must be a true bound, and
        the output that is granted is sent to the target as its limit."""
        ...

    async def reserve(
        self,
        *,
        account: str,
        target: str,
        provider: str,
        model: str,
        most: TokenCounts,
        request_id: str = "",
        route: str = "",
        processing: str = "standard",
        least_output: int = 0,
    ) -> Hold:
        """Set aside the worst case of an attempt; raises where a budget does not allow it. Limits per request
        and per route need the request's id and the route's name.

        With `least_output` a budget that has not enough for `most` may grant less output, not less than
        that; see `Hold.output`.
        """
        ...

    async def keep(self, hold: Hold, lease_s: float) -> None:
        """The attempt will be settled by another process, or hours later: hold the money for so long."""
        ...

    async def release(self, hold: Hold) -> None:
        """Nothing was computed or sent for it: there is nothing to book."""
        ...

    async def settle(self, hold: Hold, attempt: Attempt) -> int | None:
        """Book an attempt in place of its hold. Its cost, None where it is unpriced. A second call for the
        same hold changes nothing."""
        ...
