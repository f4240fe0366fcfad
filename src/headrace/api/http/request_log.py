"""The requests that have ended: kept in the store where the settings say so, else the latest in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from headrace.api.http.call_context import HttpCall
from headrace.config.settings import Settings
from headrace.config.stderr_log import REQUESTS
from headrace.errors import StoreBusy, StoreError
from headrace.inference.accounts import Account
from headrace.storage.database import Database
from headrace.storage.request_log import (
    CLIENT_GONE,
    HISTORY_BYTES,
    LogBounds,
    LogFilter,
    LoggedRequest,
    LogPart,
    LogTrimmer,
    arrivals_of,
    find_logged,
    forget_logged,
    newest_of_log,
    page_of_log,
    write_log,
)
from headrace.telemetry.ended_call import EndedCall
from headrace.telemetry.explain import explain
from headrace.telemetry.explain_node import ExplainNode
from headrace.telemetry.request_metrics import ModelMetrics

LOG = logging.getLogger("headrace.api")
REQUESTS_LOG = logging.getLogger(REQUESTS)
MAX_WAITING = 10_000  # lines; a disk that is too slow for more costs lines, never requests
MEMORY_REQUESTS, MEMORY_BYTES = 1000, 16 * 2**20
"""Bounds where nothing is written to the disk: requests of each key, bytes of all."""
UNREAD = 2048  # calls that wait until somebody asks for their lines, where nothing is written to the disk
MAX_TREE_BYTES = 64 * 1024
MAX_PATH = 1024  # characters
LINE_BYTES = 400  # of a line without texts, about

ENDING_S = 0.05
"""From the last byte of a reply to the call's end, at most, on a busy machine."""

T = TypeVar("T")


class RequestLog:
    """Lives on the event loop; a thread of its own writes and reads. A line that cannot be kept is counted,
    and serving goes on."""

    def __init__(self, database: Database, settings: Settings, meter: ModelMetrics) -> None:
        self._is_kept, self._is_printed = settings.log_requests, settings.log_format == "json"
        self._database = database if self._is_kept else Database(None)
        self._meter = meter
        self.is_eager = self._is_kept or self._is_printed
        """Whether lines are written as soon as there are some."""
        bounds = _bounds(settings)
        self._most, self._trimmer = bounds.max_requests, LogTrimmer(self._database, bounds)
        self.waiting: deque[HttpCall] = deque()
        """Calls that have ended, and have no line yet."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-log")

    def flush(self, *, is_asked_for: bool) -> None:
        """Write lines for what waits, on the thread. Lines that nobody asks for and that are not written to
        the disk can wait: a tree takes longer than all else that is done at a call's end. A call that is
        explained does not wait, since its parts have no bound, nor one whose body is kept."""
        while len(self.waiting) > MAX_WAITING:
            self.waiting.popleft()
            self._meter.log_failures += 1
        self._thread.submit(self._write if is_asked_for else self._thin)

    async def find(self, request_id: str, reader: Account) -> LoggedRequest | None:
        """The latest request of that id which the reader may see."""

        def find() -> LoggedRequest | None:
            return find_logged(self._database, request_id, self._sees(reader))

        found = await self._read(find)
        if found is None:  # a client has the end of its reply before the server has noted it
            await asyncio.sleep(ENDING_S)
            found = await self._read(find)
        return found

    async def page(self, wanted: LogFilter, reader: Account) -> list[LoggedRequest]:
        """Requests that the reader may see, newest first."""
        return await self._read(
            lambda: page_of_log(self._database, replace(wanted, owner=self._sees(reader)))
        )

    async def known(self, ids: Collection[str]) -> set[tuple[str, float]]:
        """Id and arrival of the lines of these ids, of any key."""
        return await self._read(lambda: arrivals_of(self._database, ids)) if ids else set()

    async def history(self, reader: Account) -> LogPart:
        """The newest requests that the reader may see, with their parts."""
        return await self._read(lambda: newest_of_log(self._database, self._sees(reader), HISTORY_BYTES))

    async def delete(self, names: Collection[str], reader: Account) -> bool:
        """Forget the lines of these ids which the reader may see; whether there were some."""
        whose = self._sees(reader)
        return await self._read(lambda: sum(forget_logged(self._database, one, whose) for one in names) > 0)

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

    def _thin(self) -> None:
        """On the thread: of calls that nobody has asked for, drop those of which their keys have too many,
        before a line is made of them. Where many keys have few each, lines take less memory."""
        calls = [self.waiting.popleft() for _ in range(len(self.waiting))]
        found, kept = Counter[str](), list[HttpCall]()
        for call in reversed(calls):
            owner = self._owner(call.account)
            found[owner] += 1
            if found[owner] <= self._most:
                kept.append(call)
        self.waiting.extendleft(kept)
        if len(kept) > UNREAD // 2:
            self._write()

    def _write(self) -> None:
        """On the thread: everything that waits, in one transaction."""
        calls = [self.waiting.popleft() for _ in range(len(self.waiting))]
        if not calls:
            return  # an earlier turn has written them
        try:
            lines = [self._line(call) for call in calls]
            write_log(self._database, lines)
        except StoreBusy:
            self.waiting.extendleft(reversed(calls))  # with the next
            return
        except StoreError as error:
            self._meter.log_failures += len(calls)
            LOG.error("%s; %d lines of the request log are lost", error.message, len(calls))
            return
        if self._is_printed:
            for line in lines:
                _print(line)
        try:
            self._trimmer.added(lines, time.time())
        except StoreError as error:  # the next lines try again
            LOG.warning("%s; the request log is not trimmed", error.message)

    def _line(self, call: HttpCall) -> LoggedRequest:
        kept, body = _tree(call), call.body or None
        return LoggedRequest(
            **_facts(call),
            key_name=call.account.name or None,
            body=body,
            owner=self._owner(call.account),
            explain=kept,
            size_bytes=LINE_BYTES + len(call.path) + len(kept) + len(body or b""),
        )


def _tree(call: HttpCall) -> bytes:
    """The JSON of a call's tree: as much of it as may be kept."""
    found = msgspec.json.encode(_named(call, explain(call.stages, call.traces, call.total_s, content=True)))
    if len(found) > MAX_TREE_BYTES:
        found = msgspec.json.encode(_named(call, explain(call.stages, call.traces, call.total_s)))
    if len(found) > MAX_TREE_BYTES:
        part = explain(call.stages[:16], call.traces[:1], call.total_s)
        found = msgspec.json.encode(_named(call, part))
    if len(found) > MAX_TREE_BYTES:
        found = msgspec.json.encode(_named(call, ExplainNode("request", call.total_s)))
    return found


def _named(call: HttpCall, tree: ExplainNode) -> ExplainNode:
    """The tree with the ids of its span and its caller's."""
    detail, trace = {} if tree.detail is UNSET else dict(tree.detail), call.trace
    if trace.parent_id:
        detail["parent_span_id"] = trace.parent_id
    return replace(tree, detail=detail or UNSET, span_id=trace.span_id)


def _facts(call: HttpCall) -> dict[str, Any]:
    """What a line and a trace both have."""
    was_cut = not call.is_whole and call.status < 400
    found: dict[str, Any] = {
        "id": call.request_id,
        "arrived_s": call.arrived_unix_s,
        "method": call.method,
        "path": call.path[:MAX_PATH],
        "status": CLIENT_GONE if was_cut else call.status,
        "model": call.model,
        "prompt_tokens": None,
        "cached_tokens": None,
        "completion_tokens": None,
        "first_token_s": call.first_token_s,
        "total_s": call.total_s,
        "error": call.error_code,
        "trace_id": call.trace.trace_id,
    }
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        if call.usages:
            found[name] = sum(getattr(usage, name) for usage in call.usages)
    return found


def ended_call(call: HttpCall) -> EndedCall:
    """What traces and metrics are made of."""
    return EndedCall(
        **{name: value for name, value in _facts(call).items() if name != "trace_id"},
        trace=call.trace,
        finish_reasons=call.finish_reasons,
        params=call.params,
        stages=call.stages,
        traces=call.traces,
    )


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
