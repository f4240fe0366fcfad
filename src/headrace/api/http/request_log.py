"""From calls that have ended to lines of the request log, written by a thread of its own."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from headrace.api.http.call_context import HttpCall
from headrace.errors import StoreBusy, StoreError
from headrace.storage.database import Database
from headrace.storage.request_log import LoggedRequest, write_log
from headrace.telemetry.request_metrics import ModelMetrics

LOG = logging.getLogger("headrace.api")
MAX_WAITING = 10_000  # lines; a disk that is too slow for more costs lines, never requests


class RequestLog:
    """Lives on the event loop. A line that cannot be kept is counted, and serving goes on."""

    def __init__(self, database: Database, meter: ModelMetrics) -> None:
        self._database = database
        self._meter = meter
        self._waiting: deque[LoggedRequest] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-log")

    def add(self, call: HttpCall, model: str | None) -> None:
        """Keep a line for a call that has ended."""
        if len(self._waiting) >= MAX_WAITING:
            self._meter.log_failures += 1
            return
        self._waiting.append(_line(call, model))
        self._thread.submit(self._write)

    def close(self) -> None:
        """Write what waits."""
        self._thread.shutdown()
        self._write()

    def _write(self) -> None:
        """On the thread: everything that waits, in one transaction."""
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not lines:
            return  # an earlier turn has written them
        try:
            write_log(self._database, lines)
        except StoreBusy:
            self._waiting.extendleft(reversed(lines))  # with the next
        except StoreError as error:
            self._meter.log_failures += len(lines)
            LOG.error("%s; %d lines of the request log are lost", error.message, len(lines))


def _line(call: HttpCall, model: str | None) -> LoggedRequest:
    total_s = time.monotonic() - call.arrival_s
    line = LoggedRequest(
        id=call.request_id,
        arrived_s=time.time() - total_s,
        key_name=call.account.name or None,
        method=call.method,
        path=call.path[:1024],
        status=call.status,
        model=model,
        prompt_tokens=None,
        cached_tokens=None,
        completion_tokens=None,
        first_token_s=call.first_token_s,
        total_s=total_s,
        error=None if call.error is None else call.error.code or call.error.kind,
        body=call.body or None,
    )
    if not call.usages:
        return line
    return replace(
        line,
        prompt_tokens=sum(usage.prompt_tokens for usage in call.usages),
        cached_tokens=sum(usage.cached_tokens for usage in call.usages),
        completion_tokens=sum(usage.completion_tokens for usage in call.usages),
    )
