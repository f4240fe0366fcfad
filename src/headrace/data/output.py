"""Rows in the format asked for, written batch by batch up to a number of rows and bytes."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.data.job import Format

_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


class TooMuch(Exception):
    """A reply has more rows or bytes than it may."""


class Output:
    """`close` returns what `add` has written."""

    def __init__(self, kind: Format, schema: Any, max_rows: int, max_bytes: int) -> None:
        self._kind, self._max_rows, self._max_bytes = kind, max_rows, max_bytes
        self._buffer = io.BytesIO()
        self._names = unique_names(schema.names)
        self.rows = 0
        self._writer: Any = None
        if kind == "arrow":
            self._writer = importlib.import_module("pyarrow").ipc.new_stream(self._buffer, schema)
        elif kind == "csv":
            self._csv = importlib.import_module("csv")
            self._text = io.StringIO()
            self._writer = self._csv.writer(self._text, lineterminator="\n")
            self._writer.writerow(schema.names)
        else:
            self._buffer.write(b"[")

    def add(self, batch: Any) -> None:
        """Write the rows of a batch; TooMuch beyond the limits."""
        self.rows += batch.num_rows
        if self.rows > self._max_rows:
            raise TooMuch(
                f"the result has more than {self._max_rows:,} rows: add LIMIT or a condition, or aggregate"
            )
        if self._kind == "arrow":
            self._writer.write_batch(batch)
        elif self._kind == "csv":
            columns = [_values(column) for column in batch.columns]
            self._writer.writerows([_cell(value) for value in row] for row in zip(*columns, strict=True))
            self._drain()
        else:
            self._json(batch)
        if self._buffer.tell() > self._max_bytes:
            raise TooMuch(
                f"the result has more than {self._max_bytes:,} bytes: ask for fewer rows or columns"
            )

    def close(self) -> bytes:
        """All that was written."""
        if self._kind == "arrow":
            self._writer.close()
        elif self._kind == "csv":
            self._drain()
        else:
            self._buffer.write(b"]")
        return self._buffer.getvalue()

    def _drain(self) -> None:
        self._buffer.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()

    def _json(self, batch: Any) -> None:
        columns = [_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            if self._buffer.tell() > 1:
                self._buffer.write(b",")
            self._buffer.write(_ENCODER.encode(dict(zip(self._names, row, strict=True))))


def _values(column: Any) -> list[Any]:
    """The values of a column of Arrow."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):  # a date that Python does not know
        return [_value(one) for one in column]


def _value(scalar: Any) -> Any:
    """A value; a date or time outside the years 1 to 9999 as ISO 8601 has it, or as infinity."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        kind = str(scalar.type)
        if not kind.startswith(("date32", "timestamp")):
            raise ValueError(
                f"a value of type {kind} has a date outside the years 1 to 9999, which cannot be written "
                "as JSON or CSV there: CAST it to VARCHAR"
            ) from None
    number, infinite = scalar.value, 2**31 - 1 if kind.startswith("date32") else 2**63 - 1
    if abs(number) == infinite:
        return "infinity" if number > 0 else "-infinity"
    text = str(np.datetime64(number, "D" if kind.startswith("date32") else scalar.type.unit))
    year, rest = text[1:].split("-", 1) if number < 0 and text[0] == "-" else ("", text)
    text = f"-{int(year):04}-{rest}" if year else text
    return text + "Z" if "tz=" in kind else text


def unique_names(names: Sequence[str]) -> list[str]:
    """Names of columns for objects: a repeated one gets _1, _2, … behind it."""
    found: dict[str, None] = {}
    for name in names:
        candidate, number = name, 0
        while candidate in found:
            number += 1
            candidate = f"{name}_{number}"
        found[candidate] = None
    return list(found)


def _cell(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping | list):
        return _ENCODER.encode(value).decode()
    return str(value)
