"""`python -m headrace.flight.parameters`: reads the values of parameters that clients send as Arrow.

In a process of its own: a compressed column may claim, and become, any number of bytes.
"""

from __future__ import annotations

import importlib
import os
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import msgspec

from headrace.flight.commands import Value
from headrace.isolation.fork_server import Ask, Work, serve

MAX_VALUES = 1000


class ParametersRead(msgspec.Struct):
    """The values of one row, or why there are none."""

    values: tuple[Value, ...] = ()
    error: str = ""


def prepare(setup: bytes) -> Work:
    """Loads Arrow once."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve more than a fork may have
    importlib.import_module("pyarrow")
    return _work


def _work(payload: bytes, ask: Ask) -> bytes:
    try:
        read = ParametersRead(_values(payload))
    except MemoryError:
        raise
    except Exception as error:  # of Arrow: what was sent is no stream, or not a valid one
        read = ParametersRead(error=str(error)[:500] or type(error).__name__)
    return msgspec.msgpack.encode(read)


def _values(stream: bytes) -> tuple[Value, ...]:
    arrow: Any = importlib.import_module("pyarrow")
    reader = arrow.ipc.open_stream(stream)
    if len(reader.schema) > MAX_VALUES:
        raise ValueError(f"there are {len(reader.schema):,} parameters, at most {MAX_VALUES:,} may be")
    rows: list[tuple[Value, ...]] = []
    for batch in reader:
        batch.validate(full=True)
        if len(rows) + batch.num_rows > 1:
            raise ValueError("there is more than one row of parameters: bind and run them one by one")
        rows += zip(*([_value(one.as_py()) for one in column] for column in batch.columns), strict=True)
    if not rows and len(reader.schema):
        raise ValueError("there is no row of parameters")
    return rows[0] if rows else ()


def _value(value: object) -> Value:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, date | datetime | time):
        return str(value)
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"a parameter is a {type(value).__name__}: bind a text, a number or a truth value")


if __name__ == "__main__":
    serve(prepare)
