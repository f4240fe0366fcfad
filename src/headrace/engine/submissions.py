"""Submissions that take long, because a grammar is compiled: each has a thread of its own, up to a number."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.engine.request import EngineRequest, EventCallback, RequestHandle

MAX_THREADS = 32
"""They wait for a process that compiles (GrammarCompiler), which does little at a time: a grammar that is
known needs a thread while others take long."""

Submit = Callable[[EngineRequest, EventCallback], RequestHandle]


class Submissions:
    """Calls an engine's `submit` without waiting for it. Safe to use from any thread."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """What `submit` returns or raises. Cancelled in time, the request is not submitted at all."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="headrace-compile")
            threads = self._threads
        return threads.submit(self._submit, request, sink)

    def close(self) -> None:
        """Drop what has not begun."""
        with self._lock:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)


def submitted(submit: Submit, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
    """The outcome of a submission that takes no time."""
    done: Future[RequestHandle] = Future()
    try:
        done.set_result(submit(request, sink))
    except Exception as error:
        done.set_exception(error)
    return done
