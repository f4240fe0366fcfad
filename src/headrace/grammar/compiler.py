"""Compiles constraints under limits, in a process of its own, and remembers what was refused."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from headrace.errors import EngineStopped, Overloaded
from headrace.grammar.compile import COMPILER_STACK_BYTES
from headrace.grammar.compile_server import Compiled, PlainTable
from headrace.grammar.constraint import Constraint, GrammarError
from headrace.grammar.token_table import TokenTable
from headrace.isolation.child import IsolatedProcess, LimitExceeded, WorkFailed, WorkLost
from headrace.isolation.limits import ProcessLimits
from headrace.struct_types import thread_safe

MAX_CPU_S = 1.0
MAX_MEMORY_BYTES = 256 * 2**20
QUICK_CPU_S = 0.1
"""Nearly every grammar takes less. What takes more starts again in a queue of its own, so that few others
wait for it."""
QUICK_THREADS = 2
MAX_SLOW = 8  # waiting or running
SLOW_NICENESS = 5
MAX_REFUSALS = 256  # remembered
_MODULE = "headrace.grammar.compile_server"

T = TypeVar("T")


class _Job(msgspec.Struct, Generic[T], eq=False):
    """A constraint that is to be compiled, for everyone who asks for it meanwhile."""

    constraint: Constraint
    payload: bytes
    key: bytes
    waiting: list[Future[T]]

    @property
    def is_wanted(self) -> bool:
        return not all(future.cancelled() for future in self.waiting)


class GrammarCompiler(Generic[T]):
    """Compiles for one model: first under limits, then `build` makes what the engine needs. Safe to share
    between threads; the work is done by some of its own.
    """

    def __init__(
        self, read_tokens: Callable[[], TokenTable], build: Callable[[Constraint, Compiled], T]
    ) -> None:
        self._process = IsolatedProcess(_MODULE, lambda: _plain(read_tokens()))
        self._build = build
        self._quick = ThreadPoolExecutor(QUICK_THREADS, thread_name_prefix="headrace-compile")
        self._slow = ThreadPoolExecutor(1, thread_name_prefix="headrace-compile-slow")
        self._lock = threading.Lock()  # guards the fields below
        self._refused: OrderedDict[bytes, tuple[str, str | None]] = OrderedDict()
        self._jobs: dict[bytes, _Job[T]] = {}
        self._slow_jobs = 0
        self._is_closed = False

    def compile(self, constraint: Constraint) -> Future[T]:
        """What `build` makes of the constraint. The future may be cancelled at any time.

        It fails with GrammarError where the constraint cannot be compiled or takes more than the limits, and
        with Overloaded where too many take long or the process was ended from outside.
        """
        payload = msgspec.msgpack.encode(constraint)
        key = sha256(payload).digest()
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                future.set_exception(EngineStopped("the engine was shut down"))
            elif key in self._refused:
                self._refused.move_to_end(key)
                message, param = self._refused[key]
                future.set_exception(GrammarError(message, param=param))
            elif key in self._jobs:
                self._jobs[key].waiting.append(future)
            else:
                job = self._jobs[key] = _Job(constraint, payload, key, [future])
                self._quick.submit(self._run, job, self._try_quickly)
        return future

    def meanwhile(self, work: Callable[[], object]) -> None:
        """Do something on a thread of the compiler, while its process compiles."""
        with suppress(RuntimeError):  # closed
            self._quick.submit(work)

    def close(self) -> None:
        """End the process; what waits fails."""
        with self._lock:
            self._is_closed = True
            jobs = list(self._jobs.values())
        for job in jobs:
            self._end(job, EngineStopped("the engine was shut down"))
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)
        self._process.close()

    # -- on threads of the compiler ---------------------------------------------------------------------

    def _run(self, job: _Job[T], compile_job: Callable[[_Job[T]], None]) -> None:
        try:
            if job.is_wanted:
                compile_job(job)
            else:
                self._end(job, GrammarError("its clients have left"))
        except Exception as error:
            if isinstance(error, GrammarError) and not isinstance(error.__cause__, WorkFailed):
                self._remember(job.key, error)  # another try would end the same way
            self._end(job, error)

    def _try_quickly(self, job: _Job[T]) -> None:
        try:
            self._finish(job, self._compiled(job, QUICK_CPU_S))
        except LimitExceeded:
            with self._lock:
                if self._slow_jobs >= MAX_SLOW:
                    raise Overloaded(
                        f"{self._slow_jobs} grammars that take long to compile are waiting, at most "
                        f"{MAX_SLOW} may: try again later, or send a simpler one",
                        reason="grammars",
                    ) from None
                self._slow_jobs += 1
            self._slow.submit(self._run_slowly, job)

    def _run_slowly(self, job: _Job[T]) -> None:
        try:
            self._run(job, self._compile_slowly)
        finally:
            with self._lock:
                self._slow_jobs -= 1

    def _compile_slowly(self, job: _Job[T]) -> None:
        try:
            compiled = self._compiled(job, MAX_CPU_S, niceness=SLOW_NICENESS)
            self._finish(job, replace(compiled, quick=False))
        except LimitExceeded:
            raise job.constraint.error(
                f"needs more than {MAX_CPU_S:g} s or {MAX_MEMORY_BYTES >> 20} MB to compile: simplify it, or "
                "split it (large multipleOf, minItems or maxLength, many patterns in allOf, and repetitions "
                "within repetitions take the most)"
            ) from None

    def _compiled(self, job: _Job[T], cpu_s: float, *, niceness: int = 0) -> Compiled:
        limits = ProcessLimits(cpu_s, MAX_MEMORY_BYTES + COMPILER_STACK_BYTES)
        try:
            output = self._process.call(job.payload, limits, niceness=niceness)
        except WorkLost as error:
            raise Overloaded(
                f"the process that compiled {job.constraint.name} was lost ({error}), for want of memory "
                "perhaps: send the request again",
                reason="grammars",
            ) from error
        except WorkFailed as error:
            raise job.constraint.error(f"cannot be compiled: the compiler failed ({error})") from error
        compiled = msgspec.msgpack.decode(output, type=thread_safe(Compiled))
        if compiled.error is not None:
            raise GrammarError(compiled.error, param=compiled.param)
        return compiled

    def _finish(self, job: _Job[T], compiled: Compiled) -> None:
        self._end(job, self._build(job.constraint, compiled))

    def _end(self, job: _Job[T], outcome: T | Exception) -> None:
        with self._lock:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]  # who asks from now on gets a job of its own
            waiting, job.waiting = job.waiting, []
        for future in waiting:
            with suppress(InvalidStateError):  # cancelled
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

    def _remember(self, key: bytes, refusal: GrammarError) -> None:
        with self._lock:
            self._refused[key] = refusal.message, refusal.param
            while len(self._refused) > MAX_REFUSALS:
                self._refused.popitem(last=False)


def _plain(table: TokenTable) -> bytes:
    return msgspec.msgpack.encode(
        PlainTable(list(table.tokens), sorted(table.special_ids), sorted(table.eos_ids))
    )
