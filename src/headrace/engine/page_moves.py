"""KV pages that leave the engine for another process, or come from one (docs/decisions/0114)."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field

from headrace.engine.active_requests import ActiveRequests
from headrace.engine.request_queue import LoopCall, RequestQueue
from headrace.engine.request_state import RequestState
from headrace.engine.scheduler.moved_pages import ReservedPages, Root
from headrace.engine.scheduler.scheduler import Scheduler
from headrace.engine.scheduler.sequence import Sequence, State
from headrace.executors.executor import Executor
from headrace.executors.page_memory import PagedExecutor, PageMemory

WAIT_S = 1e-3
HotText = tuple[Root, int, tuple[int, ...]]


class PageExport(Struct, eq=False):
    """Pages of a text, in order. `sink` gets those that are new, and whether they are the last, on the
    engine's thread. With `follows` it gets what the request `request_id` computes, step by step, until
    `finish`. All of them are in use until `PageMoves.release`."""

    root: Root
    tokens: tuple[int, ...]
    sink: Callable[[list[int], bool], None]
    request_id: str = ""
    follows: bool = False
    pinned: list[int] = field(default_factory=list[int])
    released: bool = False


class PageMoves:
    """What is asked for is done on the engine's thread, between two steps."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        queue: RequestQueue[RequestState],
        active: ActiveRequests,
    ) -> None:
        self.memory: PageMemory | None = executor.page_memory if isinstance(executor, PagedExecutor) else None
        """None where pages cannot be moved, or the engine has stopped."""
        self._scheduler, self._queue, self._active = scheduler, queue, active
        self._following: list[PageExport] = []
        self._reserved = 0

    # -- from any thread ------------------------------------------------------------------------------

    def export(self, export: PageExport) -> None:
        """Begin an export."""

        def begin() -> None:
            self._following.append(export)
            self.after_step()

        self._queue.put(LoopCall(begin))

    def finish(self, export: PageExport) -> None:
        """No more of it will be computed: what there is now is the last."""

        def end() -> None:
            export.follows = False
            self.after_step()

        self._queue.put(LoopCall(end))

    def release(self, export: PageExport) -> None:
        """Its pages were read, or nobody wants them any more."""

        def end() -> None:
            if not export.released:
                export.released = True
                self._following = [one for one in self._following if one is not export]
                self._scheduler.moved.unpin(export.pinned)

        self._queue.put(LoopCall(end))

    def reserve(self, root: Root, tokens: tuple[int, ...], sink: Callable[[ReservedPages], None]) -> None:
        """Pages to write; `commit` follows."""

        def begin() -> None:
            self._reserved += 1
            sink(self._scheduler.moved.reserve(root, tokens))

        self._queue.put(LoopCall(begin))

    def commit(self, reserved: ReservedPages, count: int, sink: Callable[[int], None]) -> None:
        """The first `count` are written; `sink` gets how many tokens of the text are cached."""

        def end() -> None:
            self._reserved -= 1
            sink(self._scheduler.moved.commit(reserved, count))

        self._queue.put(LoopCall(end))

    def hottest(self, page_count: int, sink: Callable[[list[HotText]], None]) -> None:
        """See `MovedPages.hottest`."""
        self._queue.put(LoopCall(lambda: sink(self._scheduler.moved.hottest(page_count))))

    # -- on the engine's thread -----------------------------------------------------------------------

    def after_step(self) -> None:
        """Give the exports what is new."""
        for export in self._following[:]:
            sequence = self._sequence(export.request_id)
            if sequence is not None and sequence.state is not State.RUNNING and export.follows:
                continue
            new = self._scheduler.moved.pin(export.root, export.tokens, len(export.pinned), sequence)
            export.pinned += new
            tokens = (len(export.pinned) + 1) * self._scheduler.page_tokens
            last = not export.follows or tokens >= len(export.tokens)
            if last:
                self._following.remove(export)
            if new or last:
                export.sink(new, last)

    def wait(self) -> None:
        """Nothing can be computed: perhaps because pages are reserved, until these are written."""
        if self._reserved:
            time.sleep(WAIT_S)

    def close(self) -> None:
        """The memory is freed with the executor."""
        self.memory = None

    def _sequence(self, request_id: str) -> Sequence | None:
        """The sequence that computes a request's prompt, None where there is none."""
        state = self._active.find(request_id) if request_id else None
        return None if state is None or not state.choices else state.choices[0].sequence
