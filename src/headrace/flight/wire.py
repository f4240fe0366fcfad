"""The little of Protocol Buffers that Flight's messages need: bytes, numbers, and messages within them.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST = (1 << 64) - 1
MAX_VALUES = 4096
"""Fields of one message, and numbers of one field: each takes Python a microsecond on the event loop."""
T = TypeVar("T", bytes, int)


class NotMessage(ValueError):
    """Bytes are no message of Protocol Buffers."""


def pack(*fields: tuple[int, bytes | str | int]) -> bytes:
    """A message of these fields, by number; texts as UTF-8."""
    parts = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            parts += _varint(number << 3 | _VARINT) + _varint(value & _MOST)
            continue
        data = value.encode() if isinstance(value, str) else value
        parts += _varint(number << 3 | _BYTES) + _varint(len(data)) + data
    return bytes(parts)


def unpack(message: bytes) -> Mapping[int, Sequence[bytes | int]]:
    """The fields of a message, by number; each may be there several times. NotMessage."""
    found: dict[int, list[bytes | int]] = {}
    at = count = 0
    while at < len(message):
        count = _counted(count)
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
        else:
            if kind == _BYTES:
                size, at = _read_varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise NotMessage(f"there is no kind of field {kind}")
            if size > len(message) - at:
                raise NotMessage("a field is longer than its message")
            value, at = message[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def last(fields: Mapping[int, Sequence[bytes | int]], number: int, default: T) -> T:
    """The value of a field that is there once; NotMessage where it is of another kind than `default`."""
    values = fields.get(number)
    if not values:
        return default
    value = values[-1]
    if not isinstance(value, type(default)):
        raise NotMessage(f"field {number} is of another kind")
    return value


def text(data: bytes) -> str:
    """A text; NotMessage where it is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NotMessage("a text is no UTF-8") from None


def numbers(values: Sequence[bytes | int]) -> list[int]:
    """A repeated number, packed or not."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            _counted(len(found))
            one, at = _read_varint(value, at)
            found.append(one)
    return found


def _counted(values: int) -> int:
    """One more than so many."""
    if values >= MAX_VALUES:
        raise NotMessage(f"a message has more than {MAX_VALUES:,} values")
    return values + 1


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise NotMessage("it ends within a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & _MOST, at
    raise NotMessage("a number has more than 64 bits")
