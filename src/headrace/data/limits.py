"""What a statement may take of models: rows, tokens, seconds, money."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from headrace.data.operator import RowCost
from headrace.economy.money import NANO, nano_of, plain_usd
from headrace.errors import InvalidRequest, StoreError
from headrace.storage.sql_memo import SqlMemo

LOG = logging.getLogger("headrace.data")
EARLIER_TOKENS = 20_000  # what earlier processes measured weighs at most as much as so many tokens


class SqlLimit(InvalidRequest):
    """A statement takes more time, memory, rows, bytes, tokens or money than it may."""

    remedy = "Ask for less, or raise the limit in `[sql]`."
    code = "sql_limit"


class AiLimits(Struct, frozen=True, kw_only=True):
    """The most that a statement may take. `rows` are those that are computed: different, and not known yet.
    `names` are the settings or parameters that say so."""

    rows: int
    tokens: int
    seconds: float
    max_usd: float | None = None
    usd_per_hour: float | None = None
    names: tuple[str, str] = ("sql.ai_rows", "sql.ai_tokens")


class MeasuredSpeed(Struct):
    """Tokens and seconds of one function and model so far."""

    tokens: int = 0
    took_s: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """More has been computed."""
        self.tokens += tokens
        self.took_s += seconds

    def seconds(self, tokens: int) -> float | None:
        """That so many tokens will take; None where nothing was computed yet."""
        return tokens * self.took_s / self.tokens if self.tokens else None


class Speeds:
    """Of all functions and models. They are kept in the file of the memo, for processes that begin later."""

    def __init__(self, store: SqlMemo | None = None) -> None:
        """`store` None keeps nothing beyond the process."""
        self._store = store
        self._known: dict[tuple[str, str], MeasuredSpeed] = {}

    def of(self, model: str, operator: str) -> MeasuredSpeed:
        """Of a model, by what names its weights, and a function."""
        key = (model, operator)
        if key not in self._known:
            self._known.setdefault(key, self._found(key))
        return self._known[key]

    def keep(self, model: str, operator: str) -> None:
        """Keep the speed that was measured."""
        key = (model, operator)
        speed = self.of(*key)
        if self._store is None or not speed.tokens:
            return
        try:
            self._store.keep_speed(_speed_key(key), msgspec.msgpack.encode(speed))
        except StoreError as error:
            LOG.warning("the speed of a model cannot be kept: %s", error.message)

    def _found(self, key: tuple[str, str]) -> MeasuredSpeed:
        """What earlier processes measured, counting little beside what this one measures."""
        try:
            found = None if self._store is None else self._store.speed(_speed_key(key))
            speed = None if found is None else msgspec.msgpack.decode(found, type=MeasuredSpeed)
        except (StoreError, msgspec.DecodeError):
            speed = None
        if speed is None or speed.tokens <= EARLIER_TOKENS:
            return speed or MeasuredSpeed()
        return MeasuredSpeed(EARLIER_TOKENS, speed.took_s * EARLIER_TOKENS / speed.tokens)


def _speed_key(key: tuple[str, str]) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=32).digest()


class AiBudget:
    """Counts against the limits. What would exceed one is refused before it is computed."""

    def __init__(self, limits: AiLimits) -> None:
        self._limits = limits
        self.rows, self.tokens, self._seconds = 0, 0, 0.0
        self._machine_s, self._nano = 0.0, 0  # what this machine has computed, and what others may bill

    def take(self, function: str, costs: Sequence[RowCost], speed: MeasuredSpeed) -> None:
        """Set aside what rows take at most; SqlLimit where that is too much, or by `speed` costs too much."""
        limits = self._limits
        requests = sum(one.requests for one in costs)
        rows = self.rows + requests
        prompt, output = sum(one.prompt_tokens for one in costs), sum(one.max_output for one in costs)
        tokens = self.tokens + prompt + output
        if rows > limits.rows:
            raise SqlLimit(
                f"{function}() has {len(costs):,} different rows to compute"
                f"{f' in {requests:,} requests' if requests > len(costs) else ''}, {rows:,} together with"
                f" others, {limits.names[0]} allows {limits.rows:,}: select fewer rows, or raise it",
                param="sql",
            )
        if tokens > limits.tokens:
            bound = "" if all(one.exact for one in costs) else "up to "
            raise SqlLimit(
                f"{function}() has {bound}{prompt:,} prompt tokens and up to {output:,} of output in"
                f" {len(costs):,} rows, {tokens:,} together with others, {limits.names[1]} allows"
                f" {limits.tokens:,}: select fewer rows, lower max_tokens, or raise it",
                param="sql",
            )
        nano = self._nano + sum(one.nano_usd or 0 for one in costs)
        if limits.max_usd is not None:
            self._check_price(function, costs)
            own = sum(one.prompt_tokens + one.max_output for one in costs if not one.is_remote)
            seconds = self._machine_s + (speed.seconds(own) or 0.0)
            self._check_money(function, (self.usd(seconds) or 0.0) + nano / NANO)
        self.rows, self.tokens, self._nano = rows, tokens, nano

    def holds(self, costs: Sequence[RowCost]) -> bool:
        """Whether costs that are bounds are certain to keep every limit, so that none need be counted."""
        most = self.tokens + sum(one.prompt_tokens + one.max_output for one in costs)
        return self._limits.max_usd is None and most <= self._limits.tokens

    def give_back(self, costs: Sequence[RowCost], prompt_tokens: int) -> None:
        """What was taken for rows by bounds was in truth so many tokens of prompts."""
        if not all(one.exact or one.is_remote for one in costs):
            self.tokens -= max(0, sum(one.prompt_tokens for one in costs) - prompt_tokens)

    def usd(self, seconds: float | None, besides: float | None = 0.0) -> float | None:
        """What so many seconds cost; None where that is not known."""
        price = self._limits.usd_per_hour
        return None if price is None or seconds is None else seconds * price / 3600 + (besides or 0.0)

    def _check_price(self, function: str, costs: Sequence[RowCost]) -> None:
        """SqlLimit where a bound of money can be kept for none of the rows' models."""
        unpriced = next((one.unpriced for one in costs if one.unpriced), None)
        if unpriced is not None:
            raise SqlLimit(f"{function}(): {unpriced}, so max_cost cannot be kept", param="max_cost")
        if not self._limits.usd_per_hour and not all(one.is_remote for one in costs):
            raise SqlLimit(
                f"{function}(): max_cost needs the price of this machine's time: set node_usd_per_hour",
                param="max_cost",
            )

    def _check_money(self, function: str, usd: float) -> None:
        most = self._limits.max_usd
        if most is not None and usd > most:
            raise SqlLimit(
                f"{function}() is predicted to cost up to {_shown(usd)} with what came before, max_cost"
                f" allows {_shown(most)}: select fewer rows, lower max_tokens, or raise it",
                param="max_cost",
            )

    @property
    def seconds_left(self) -> float:
        """Of the time in which models compute."""
        return max(0.0, self._limits.seconds - self._seconds)

    def check_spent(self, seconds: float) -> None:
        """SqlLimit where so many seconds more cost too much: what is computed meanwhile is kept."""
        limits = self._limits
        usd = (self.usd(self._machine_s + seconds) or 0.0) + self._nano / NANO
        if limits.max_usd is not None and usd > limits.max_usd:
            raise SqlLimit(
                f"models have computed for up to {_shown(usd)}, max_cost allows {_shown(limits.max_usd)}:"
                " what they have computed is kept, so send the statement again, or raise it",
                param="max_cost",
            )

    def spend_seconds(self, seconds: float) -> None:
        """The statement has waited for models for so long."""
        self._seconds += seconds

    def spend_machine(self, seconds: float) -> None:
        """This machine has computed for so long."""
        self._machine_s += seconds

    def out_of_time(self) -> SqlLimit:
        """The error at the end of the time."""
        return SqlLimit(
            f"models compute longer than sql.ai_seconds allows, {self._limits.seconds:g} s: what they have"
            " computed is kept, so send the statement again, or raise it",
            param="sql",
        )


def _shown(usd: float) -> str:
    return f"${plain_usd(nano_of(usd))}"
