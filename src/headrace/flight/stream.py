"""Rows as Flight sends them: the messages of an Arrow stream, none larger than clients take."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.flight.wire import NotMessage, last, pack, unpack

MAX_MESSAGE = 1 << 22
"""Bytes of rows in one message, about; a row alone may be longer."""
_CONTINUES = b"\xff\xff\xff\xff"


def schema_of(stream: bytes) -> bytes:
    """The first message of an Arrow stream, as it is framed there."""
    return importlib.import_module("pyarrow").ipc.open_stream(stream).schema.serialize().to_pybytes()


def flight_data(stream: bytes) -> Iterator[bytes]:
    """The messages FlightData of an Arrow stream."""
    arrow: Any = importlib.import_module("pyarrow")
    for message in arrow.ipc.MessageReader.open_stream(arrow.py_buffer(stream)):
        if message.type == "record batch" and message.body is not None and message.body.size > MAX_MESSAGE:
            yield from _in_parts(arrow, stream)
            return
    yield from _framed(arrow, stream)


def _in_parts(arrow: Any, stream: bytes) -> Iterator[bytes]:
    """The same with batches of fewer rows."""
    reader = arrow.ipc.open_stream(stream)
    first = True
    for batch in reader:
        rows = max(1, batch.num_rows * MAX_MESSAGE // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            sink = arrow.BufferOutputStream()
            with arrow.ipc.new_stream(sink, reader.schema) as writer:
                writer.write_batch(batch.slice(start, rows))
            parts = _framed(arrow, sink.getvalue())
            if not first:
                next(parts)  # the schema again
            first = False
            yield from parts


def _framed(arrow: Any, stream: Any) -> Iterator[bytes]:
    for message in arrow.ipc.MessageReader.open_stream(arrow.py_buffer(stream)):
        body = b"" if message.body is None else message.body.to_pybytes()
        yield pack((2, message.metadata.to_pybytes()), (1000, body))


def descriptor_command(message: bytes) -> bytes:
    """The command of a FlightDescriptor; NotMessage where it has none."""
    fields = unpack(message)
    if last(fields, 1, 0) != 2:
        raise NotMessage("the descriptor has no command")
    return last(fields, 2, b"")


def as_stream(messages: Iterable[bytes]) -> bytes:
    """The Arrow stream that messages FlightData are parts of."""
    parts: list[bytes] = []
    for message in messages:
        fields = unpack(message)
        header = last(fields, 2, b"")
        if header:
            padding = b"\0" * (-len(header) % 8)
            size = (len(header) + len(padding)).to_bytes(4, "little")
            parts += [_CONTINUES, size, header, padding, last(fields, 1000, b"")]
    return b"".join([*parts, _CONTINUES, bytes(4)])
