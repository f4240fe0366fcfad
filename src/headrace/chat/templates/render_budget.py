"""Budget of one template rendering: CPU time, output, memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from typing import Any, TypeVar, cast

from headrace.errors import TemplateError

CPU_LIMIT_S = 1.0
OUTPUT_LIMIT_CHARACTERS = 1_000_000  # besides the texts of the inputs
VALUE_LIMIT_BYTES = 8_000_000  # per value; shared parts count once per occurrence
TOTAL_LIMIT_BYTES = 256_000_000  # all values of a rendering; long texts count only while in use
INTEGER_LIMIT_BITS = 4096
_TICKS_PER_LOOK = 16  # reading a thread's CPU time is a system call
_LONG_TEXT_BYTES = 1024
_SWEEP_BYTES = 32_000_000
_ITEM_BYTES = 8
_OBJECT_BYTES = 64
_CONTAINERS = (list, tuple, dict, ItemsView, KeysView, ValuesView)

_Value = TypeVar("_Value")


class Budget:
    """Tracks the resources of a rendering and raises TemplateError when a limit is exceeded.

    Every operation that creates a value calls `admit`; every loop iteration and every call calls `tick`. A
    single operation on admitted values takes at most some tens of milliseconds, so the time limit holds
    without a second thread. `clock` returns seconds. `output_limit` is in characters: long messages may
    appear in the output in full.
    """

    def __init__(
        self, inputs: Sequence[object] = (), *, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._ends_s = clock() + CPU_LIMIT_S
        self._ticks = 0
        self._spent_bytes = 0
        self._sweep_at_bytes = _SWEEP_BYTES
        # id -> text; holding the text keeps its id valid. The first one has no other reference: it
        # calibrates the reference count.
        measure = "-" * _LONG_TEXT_BYTES
        self._long_texts = {id(measure): measure}
        self._known: dict[int, int] = {}  # id of a container in the inputs (which outlive this) -> bytes
        self.output_limit = OUTPUT_LIMIT_CHARACTERS + sum(self._learn(value, depth=0) for value in inputs)

    def tick(self) -> None:
        """Check the clock once in a while."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK == 0 and self._clock() > self._ends_s:
            raise TemplateError(
                f"the chat template used more than {CPU_LIMIT_S:g} s of processor time: "
                "shorten the conversation or simplify the template"
            )

    def admit(self, value: _Value) -> _Value:
        """Charge a new value to the budget, and return it."""
        if isinstance(value, str):
            size_bytes = sys.getsizeof(value)
            self.check(size_bytes)
            if size_bytes >= _LONG_TEXT_BYTES:
                if id(value) in self._long_texts:
                    return cast(_Value, value)
                self._long_texts[id(value)] = value
            self._spend(size_bytes)
        elif isinstance(value, _CONTAINERS):
            self.weigh(cast(object, value))
            self._spend(_OBJECT_BYTES + _ITEM_BYTES * len(cast(Any, value)))
        elif isinstance(value, int) and value.bit_length() > INTEGER_LIMIT_BITS:
            raise TemplateError(f"the chat template made an integer of more than {INTEGER_LIMIT_BITS} bits")
        return cast(_Value, value)

    def check(self, size_bytes: int) -> None:
        """Reject a value of this size before it is created."""
        if size_bytes > VALUE_LIMIT_BYTES:
            raise _too_large(size_bytes)

    def weigh(self, value: object) -> int:
        """Size of a value with all its parts in bytes; a shared part counts once per occurrence. This
        bounds the cost of printing, comparing or copying it.
        """
        total = 0
        pending = [value]
        while pending:
            item = pending.pop()
            known = self._known.get(id(item))
            if known is not None:
                total += known
            elif isinstance(item, str):
                total += _OBJECT_BYTES + len(item)
            else:
                total += _OBJECT_BYTES
                if isinstance(item, _CONTAINERS):
                    parts = _parts(cast(Any, item))
                    total += _ITEM_BYTES * len(parts)
                    if total <= VALUE_LIMIT_BYTES:
                        pending.extend(parts)
            if total > VALUE_LIMIT_BYTES:
                raise _too_large(total)
        return total

    def _spend(self, size_bytes: int) -> None:
        self._spent_bytes += size_bytes
        if self._spent_bytes > self._sweep_at_bytes:
            self._sweep()
            self._sweep_at_bytes = self._spent_bytes + _SWEEP_BYTES
            if self._spent_bytes > TOTAL_LIMIT_BYTES:
                raise TemplateError(
                    f"the chat template made more than {TOTAL_LIMIT_BYTES:,} bytes of values: simplify it"
                )

    def _sweep(self) -> None:
        """Refund long texts that are referenced only by this budget: templates that build their output
        incrementally create many and keep one.
        """
        counts = [sys.getrefcount(text) for text in self._long_texts.values()]
        for (key, text), count in list(zip(self._long_texts.items(), counts, strict=True))[1:]:
            if count <= counts[0]:
                self._spent_bytes -= sys.getsizeof(text)
                del self._long_texts[key]

    def _learn(self, value: object, depth: int) -> int:
        """Record the size of every container in the inputs."""
        if depth > 64:
            raise TemplateError("messages, tools or variables are nested more than 64 deep: flatten them")
        if isinstance(value, str):
            return _OBJECT_BYTES + len(value)
        if not isinstance(value, (list, dict)):
            return _OBJECT_BYTES
        parts = _parts(cast(Any, value))
        total = _OBJECT_BYTES + _ITEM_BYTES * len(parts) + sum(self._learn(part, depth + 1) for part in parts)
        if total > VALUE_LIMIT_BYTES:
            raise TemplateError(
                f"messages, tools and variables hold more than {VALUE_LIMIT_BYTES:,} bytes: send less"
            )
        self._known[id(cast(object, value))] = total
        return total


def _parts(container: Any) -> list[object]:
    if isinstance(container, dict):
        keyed = cast(dict[object, object], container)
        return [*keyed.keys(), *keyed.values()]
    return list(container)


def _too_large(size_bytes: int) -> TemplateError:
    return TemplateError(
        f"the chat template made a value of {size_bytes:,} bytes, the limit is "
        f"{VALUE_LIMIT_BYTES:,}: simplify the template"
    )
