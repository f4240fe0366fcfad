"""Compiles constraints under limits, in a process of its own, and remembers what was refused."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from headrace.errors import HeadraceError, Overloaded
from headrace.grammar.compile import COMPILER_STACK_BYTES, compile_grammar
from headrace.grammar.compile_server import Compiled, PlainTable
from headrace.grammar.constraint import Constraint, GrammarError
from headrace.grammar.token_table import TokenTable
from headrace.isolation.child import IsolatedProcess, LimitExceeded, WorkFailed
from headrace.isolation.limits import Limits

MAX_CPU_S = 1.0
MAX_MEMORY_BYTES = 256 * 2**20
QUICK_CPU_S = 0.1
"""Nearly every grammar takes less. What takes more starts again in a queue of its own, so that few others
wait for it."""
QUICK_AT_A_TIME = 2
MAX_WAITING = 8  # in the queue of the slow ones
SLOW_NICENESS = 10
MAX_REFUSALS = 256  # remembered
_MODULE = "headrace.grammar.compile_server"
_CONSTANT_KINDS = frozenset({"json_object"})  # nothing in it is the client's


class GrammarCompiler:
    """Compiles for one model. May be used from any thread; each call waits for its outcome."""

    def __init__(self, read_tokens: Callable[[], TokenTable]) -> None:
        self._process = IsolatedProcess(_MODULE, lambda: _plain(read_tokens()))
        self._quick, self._slow = threading.Semaphore(QUICK_AT_A_TIME), threading.Semaphore(1)
        self._lock = threading.Lock()  # guards the fields below
        self._refused: OrderedDict[bytes, tuple[str, str | None]] = OrderedDict()
        self._running: dict[bytes, Future[Compiled]] = {}
        self._waiting = 0

    def compile(self, constraint: Constraint, special_ids: dict[str, int]) -> Compiled:
        """llguidance's JSON for the constraint, which takes no more than the limits to build.

        GrammarError where it cannot be compiled or takes more; Overloaded where too many wait for that.
        """
        if constraint.kind in _CONSTANT_KINDS and constraint.after is None:
            return Compiled(compile_grammar(constraint, special_ids))
        payload = msgspec.msgpack.encode(constraint)
        key = sha256(payload).digest()
        with self._lock:
            if key in self._refused:
                self._refused.move_to_end(key)
                message, param = self._refused[key]
                raise GrammarError(message, param=param)
            outcome = self._running.get(key)
            others = outcome is not None
            if outcome is None:
                outcome = self._running[key] = Future[Compiled]()
        if not others:
            self._run(constraint, payload, key, outcome)
        return outcome.result()

    def start(self) -> None:
        """Start the process, without waiting for it, where it does not run."""
        self._process.start()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _run(self, constraint: Constraint, payload: bytes, key: bytes, outcome: Future[Compiled]) -> None:
        try:
            compiled = self._compiled(constraint, payload)
        except GrammarError as error:
            if not isinstance(error.__cause__, WorkFailed):  # which another try may not meet
                self._remember(key, error)
            outcome.set_exception(error)
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(compiled)
        finally:
            with self._lock:
                del self._running[key]

    def _remember(self, key: bytes, refusal: GrammarError) -> None:
        with self._lock:
            self._refused[key] = refusal.message, refusal.param
            while len(self._refused) > MAX_REFUSALS:
                self._refused.popitem(last=False)

    def _compiled(self, constraint: Constraint, payload: bytes) -> Compiled:
        quick = True
        try:
            with self._quick:
                output = self._process.call(payload, _limits(QUICK_CPU_S))
        except LimitExceeded:
            quick = False
            output = self._compiled_slowly(constraint, payload)
        except WorkFailed as error:
            raise _failed(constraint, error) from error
        compiled = msgspec.msgpack.decode(output, type=Compiled)
        if compiled.error is not None:
            raise GrammarError(compiled.error, param=compiled.param)
        return replace(compiled, quick=quick)

    def _compiled_slowly(self, constraint: Constraint, payload: bytes) -> bytes:
        with self._lock:
            if self._waiting >= MAX_WAITING:
                raise Overloaded(
                    f"{self._waiting} grammars that take long to compile are waiting, at most {MAX_WAITING} "
                    "may: try again later, or send a simpler one",
                    reason="grammars",
                )
            self._waiting += 1
        try:
            with self._slow:
                return self._process.call(payload, _limits(MAX_CPU_S), niceness=SLOW_NICENESS)
        except LimitExceeded:
            raise constraint.error(
                f"needs more than {MAX_CPU_S:g} s or {MAX_MEMORY_BYTES >> 20} MB to compile: simplify it, or "
                "split it (large multipleOf, minItems or maxLength, many patterns in allOf, and repetitions "
                "within repetitions take the most)"
            ) from None
        except WorkFailed as error:
            raise _failed(constraint, error) from error
        finally:
            with self._lock:
                self._waiting -= 1


def _limits(cpu_s: float) -> Limits:
    return Limits(cpu_s, MAX_MEMORY_BYTES + COMPILER_STACK_BYTES)


def _failed(constraint: Constraint, error: WorkFailed) -> HeadraceError:
    return constraint.error(f"cannot be compiled: the compiler failed ({error})")


def _plain(table: TokenTable) -> bytes:
    return msgspec.msgpack.encode(
        PlainTable(list(table.tokens), sorted(table.special_ids), sorted(table.eos_ids))
    )
