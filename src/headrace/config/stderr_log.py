"""The log on stderr. Clients can provoke lines, so each place in the code writes a limited number of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec
from msgspec import Struct

LINES = 10
WINDOW_S = 10.0
"""Of each place in the code LINES lines are written in WINDOW_S; at its end how many were left out."""

LogFormat = Literal["text", "json"]
REQUESTS = "headrace.request"
"""The logger of a line for each request, whose `fields` are in the record. It is not limited."""
LOG_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("headrace_log_fields")
"""Of the request that runs in this context, for lines of JSON: nothing else reads it."""

if TYPE_CHECKING:
    Stream = logging.StreamHandler[TextIO]
else:
    Stream = logging.StreamHandler
Later = Callable[[float, Callable[[], None]], object]


class _Window(Struct):
    begun_s: float
    lines: int = 0
    dropped: int = 0


def _in_a_thread(after_s: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(after_s, action)
    timer.name, timer.daemon = "headrace-log", True
    timer.start()


class BoundedHandler(Stream):
    """Writes records to a stream, of each place in the code at most LINES in WINDOW_S."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Later = _in_a_thread,
    ) -> None:
        super().__init__(stream)
        self._clock, self._later = clock, later
        self._windows: dict[tuple[str, int], _Window] = {}  # by places: there are as many as calls in code

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it. It runs with the handler's lock held."""
        if record.name == REQUESTS:
            super().emit(record)
            return
        place, now_s = (record.pathname, record.lineno), self._clock()
        window = self._windows.get(place)
        if window is None or (not window.dropped and now_s - window.begun_s >= WINDOW_S):
            window = self._windows[place] = _Window(now_s)
        if window.lines < LINES:
            window.lines += 1
            super().emit(record)
            return
        window.dropped += 1
        if window.dropped == 1:
            logger, level, text = record.name, record.levelno, record.getMessage()
            left_s = max(0.0, window.begun_s + WINDOW_S - now_s)
            self._later(left_s, lambda: self._end(place, logger, level, text))

    def _end(self, place: tuple[str, int], logger: str, level: int, text: str) -> None:
        """A window in which records were dropped is over: say so."""
        self.acquire()
        try:
            dropped = self._windows.pop(place).dropped
            text = f"{dropped:,} more such lines within {WINDOW_S:g} s were left out, the first: {text}"
            super().emit(logging.LogRecord(logger, level, *place, text, None, None))
        finally:
            self.release()


class JsonFormatter(logging.Formatter):
    """A line of JSON: time, level, logger, message, and the ids of the request that it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **LOG_FIELDS.get({}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def log_to_stderr(format: LogFormat = "text") -> None:
    """Send warnings and errors to stderr, as JSON also a line for each request, unless logging was set up
    before."""
    handler = BoundedHandler()
    if format == "json":
        handler.setFormatter(JsonFormatter())
        logging.getLogger(REQUESTS).setLevel(logging.INFO)
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING, handlers=[handler])
