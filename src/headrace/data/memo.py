"""Values that models have given, by model, settings, constants and arguments."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.data.operator import Arguments, KeptParts, RowValue
from headrace.data.questions import Value
from headrace.errors import StoreError
from headrace.storage.sql_memo import SqlMemo

LOG = logging.getLogger("headrace.data")
KEY_BYTES = 32

_decode = msgspec.msgpack.Decoder(tuple[Any, bool]).decode


class CallMemo:
    """The values of one call. `scope` is all that they depend on besides the arguments: the account, the
    model, the operator with its constants."""

    def __init__(self, store: SqlMemo | None, scope: Sequence[object]) -> None:
        """`store` None keeps nothing beyond the statement."""
        self._store = store
        self._scope = hashlib.blake2b(msgspec.msgpack.encode(scope), digest_size=KEY_BYTES).digest()

    def find(self, rows: Sequence[Arguments]) -> dict[Arguments, tuple[Value, bool]]:
        """What is kept: of each row the value, and whether it was cut."""
        if self._store is None:
            return {}
        keys = {self._key(row): row for row in rows}
        try:
            found = self._store.get(list(keys))
        except StoreError as error:
            LOG.warning("values of earlier statements cannot be read: %s", error.message)
            return {}
        return {keys[key]: _decode(value) for key, value in found.items()}

    def keep(self, values: Sequence[tuple[Arguments, RowValue]]) -> None:
        """Keep values; what was not computed is none."""
        kept = [
            (self._key(row), msgspec.msgpack.encode((found.value, found.cut)))
            for row, found in values
            if found.value is not None
        ]
        if self._store is None or not kept:
            return
        try:
            self._store.add(kept)
        except StoreError as error:
            LOG.warning("values cannot be kept for other statements: %s", error.message)

    def _key(self, row: Arguments) -> bytes:
        return hashlib.blake2b(msgspec.msgpack.encode(row), key=self._scope, digest_size=KEY_BYTES).digest()


class Keeper:
    """Keeps values as they come, in a thread, several at a time. What has ended before a crash is kept."""

    def __init__(self, memo: KeptParts) -> None:
        self._memo = memo
        self._waiting: list[tuple[Arguments, RowValue]] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, values: Sequence[tuple[Arguments, RowValue]]) -> None:
        """Values that have come."""
        self._waiting += values
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._waiting:
            values, self._waiting = self._waiting, []
            await asyncio.to_thread(self._memo.keep, values)

    async def close(self) -> None:
        """Wait until all are kept."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
