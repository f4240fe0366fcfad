"""The requests that have ended: kept in the store where the settings say so, else the latest in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.api.http.call_context import HttpCall
from headrace.config.settings import Settings
from headrace.config.stderr_log import REQUESTS
from headrace.errors import StoreBusy, StoreError
from headrace.inference.accounts import Account
from headrace.storage.database import Database
from headrace.storage.request_log import (
    CLIENT_GONE,
    LogBounds,
    LogFilter,
    LoggedRequest,
    LogTrimmer,
    find_logged,
    page_of_log,
    write_log,
)
from headrace.telemetry.explain import EngineTrace, Stage, explain
from headrace.telemetry.request_metrics import ModelMetrics

LOG = logging.getLogger("headrace.api")
REQUESTS_LOG = logging.getLogger(REQUESTS)
MAX_WAITING = 10_000  # lines; a disk that is too slow for more costs lines, never requests
MEMORY_REQUESTS, MEMORY_BYTES = 1000, 16 * 2**20
"""Bounds where nothing is written to the disk: requests of each key, bytes of all."""
UNREAD = 256  # lines that wait until somebody asks for them, where nothing is written to the disk
MAX_TREE_BYTES = 64 * 1024
LINE_BYTES = 400  # of a line without texts, about

T = TypeVar("T")


class _Ended(Struct, frozen=True):
    """A line, and what its tree is made of."""

    line: LoggedRequest
    stages: list[Stage]
    traces: list[EngineTrace]
    account: Account


class RequestLog:
    """Lives on the event loop; a thread of its own writes and reads. A line that cannot be kept is counted,
    and serving goes on."""

    def __init__(self, database: Database, settings: Settings, meter: ModelMetrics) -> None:
        self._is_kept, self._is_printed = settings.log_requests, settings.log_format == "json"
        self._database = database if self._is_kept else Database(None)
        self._meter = meter
        self._trimmer = LogTrimmer(self._database, _bounds(settings))
        self._waiting: deque[_Ended] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-log")

    def add(self, call: HttpCall, model: str | None) -> None:
        """Keep a line for a call that has ended."""
        if len(self._waiting) >= MAX_WAITING:
            self._meter.log_failures += 1
            return
        line = _line(call, model)
        if self._is_printed:
            self._thread.submit(_print, line)
        self._waiting.append(_Ended(line, call.stages, call.traces, call.account))
        if self._is_kept or len(self._waiting) >= UNREAD:
            self._thread.submit(self._write)

    async def find(self, request_id: str, reader: Account) -> LoggedRequest | None:
        """The latest request of that id which the reader may see."""
        return await self._read(lambda: find_logged(self._database, request_id, self._sees(reader)))

    async def page(self, wanted: LogFilter, reader: Account) -> list[LoggedRequest]:
        """Requests that the reader may see, newest first."""
        return await self._read(
            lambda: page_of_log(self._database, replace(wanted, owner=self._sees(reader)))
        )

    def close(self) -> None:
        """Write what waits."""
        self._thread.shutdown()
        if self._is_kept:
            self._write()
        else:
            self._database.close()

    async def _read(self, work: Callable[[], T]) -> T:
        def read() -> T:
            self._write()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def _owner(self, account: Account) -> str:
        """Whose a line is: in memory no name is needed that outlives the process, which is in the store."""
        return account.owner() if self._is_kept else account.cache_salt

    def _sees(self, reader: Account) -> str | None:
        """Whose lines a reader sees; None: everybody's."""
        return None if reader.may("admin") else self._owner(reader)

    def _write(self) -> None:
        """On the thread: everything that waits, in one transaction."""
        ended = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not ended:
            return  # an earlier turn has written them
        try:
            lines = [self._with_tree(one) for one in ended]
            write_log(self._database, lines)
        except StoreBusy:
            self._waiting.extendleft(reversed(ended))  # with the next
            return
        except StoreError as error:
            self._meter.log_failures += len(ended)
            LOG.error("%s; %d lines of the request log are lost", error.message, len(ended))
            return
        try:
            self._trimmer.added(lines, time.time())
        except StoreError as error:  # the next lines try again
            LOG.warning("%s; the request log is not trimmed", error.message)

    def _with_tree(self, ended: _Ended) -> LoggedRequest:
        line = ended.line
        tree = msgspec.json.encode(explain(ended.stages, ended.traces, line.total_s))
        if len(tree) > MAX_TREE_BYTES:
            tree = msgspec.json.encode(explain(ended.stages[:16], ended.traces[:1], line.total_s))
        kept = tree if len(tree) <= MAX_TREE_BYTES else None
        size = LINE_BYTES + len(line.path) + len(kept or b"") + len(line.body or b"")
        return replace(line, owner=self._owner(ended.account), explain=kept, size_bytes=size)


def _print(line: LoggedRequest) -> None:
    """A line of the log on stderr."""
    fields = {
        "trace_id": line.trace_id,
        "request_id": line.id,
        "method": line.method,
        "path": line.path,
        "status": line.status,
        "outcome": line.outcome,
        "model": line.model,
        "key": line.key_name,
        "input_tokens": line.prompt_tokens,
        "output_tokens": line.completion_tokens,
        "ttft_s": line.first_token_s,
        "duration_s": round(line.total_s, 6),
        "error": line.error,
    }
    shown = {name: value for name, value in fields.items() if value is not None}
    REQUESTS_LOG.info("request", extra={"fields": shown})


def _bounds(settings: Settings) -> LogBounds:
    requests, most = settings.log_max_requests, settings.log_max_bytes
    if not settings.log_requests:
        requests, most = min(requests, MEMORY_REQUESTS), min(most, MEMORY_BYTES)
    return LogBounds(max_requests=requests, max_bytes=most, max_age_s=settings.log_max_days * 86_400)


def _line(call: HttpCall, model: str | None) -> LoggedRequest:
    total_s = time.monotonic() - call.arrival_s
    was_cut = not call.is_whole and call.status < 400
    line = LoggedRequest(
        id=call.request_id,
        arrived_s=time.time() - total_s,
        key_name=call.account.name or None,
        method=call.method,
        path=call.path[:1024],
        status=CLIENT_GONE if was_cut else call.status,
        model=model,
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=None,
        first_token_s=call.first_token_s,
        total_s=total_s,
        error=None if call.error is None else call.error.code or call.error.kind,
        body=call.body or None,
        trace_id=call.trace.trace_id,
    )
    if not call.usages:
        return line
    return replace(
        line,
        prompt_tokens=sum(usage.prompt_tokens for usage in call.usages),
        cached_tokens=sum(usage.cached_tokens for usage in call.usages),
        completion_tokens=sum(usage.completion_tokens for usage in call.usages),
    )
