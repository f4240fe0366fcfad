"""The values of a GGUF header, read front to back from an untrusted file with every count checked."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile
from headrace.weights.pread_file import PositionedFile

# The largest public vocabularies need 16 MB and 650,000 strings (tokens and merges).
MAX_HEADER_BYTES = 64 << 20
MAX_STRINGS = 700_000
MAX_NESTED_ARRAYS = 256
MAX_DEPTH = 4
_READ_BYTES = 1 << 20
_BATCH = 4096  # strings that are stepped over together
_LONGEST_SHORT_BYTES = 8 + 255

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


class Strings(Struct, frozen=True, eq=False):
    """An array of strings that is still bytes: `starts` are the positions of their 8-byte lengths."""

    source: memoryview
    starts: array[int]
    where: str

    def decode(self) -> list[str]:
        """The strings; CorruptFile where one is not UTF-8."""
        found: list[str] = []
        source, length = self.source, _U64.unpack_from
        try:
            for start in self.starts:
                found.append(str(source[start + 8 : start + 8 + length(source, start)[0]], "utf-8"))
        except UnicodeDecodeError as error:
            raise CorruptFile(
                f"{self.where}: string {len(found):,} is not UTF-8 ({error.reason}): fetch the file again"
            ) from None
        return found


class Metadata(Mapping[str, object]):
    """Keys to int, float, bool, str, and arrays: a list of strings, a NumPy array of numbers, or a list of
    arrays. Arrays of strings are decoded when they are asked for."""

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> object:
        return _decoded(self._values[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _decoded(value: object) -> object:
    if isinstance(value, Strings):
        return value.decode()
    if isinstance(value, list):
        return [_decoded(entry) for entry in cast("list[object]", value)]
    return value


class HeaderReader:
    """Reads values of a GGUF header one after the other; CorruptFile says where and what was expected."""

    def __init__(self, file: PositionedFile) -> None:
        self._file = file
        # Pages that nothing is read into take no memory.
        self._limit = min(file.size, MAX_HEADER_BYTES)
        self._bytes = np.empty(self._limit, np.uint8).data
        # The 8 bytes that begin at each byte, as a number.
        self._lengths = np.ndarray(max(self._limit - 7, 0), "<u8", self._bytes, strides=(1,))
        self._filled = 0
        self._strings = 0
        self._arrays = 0
        self.position = 0

    @property
    def done(self) -> memoryview:
        """What has been read so far."""
        return self._bytes[: self.position]

    def wrong(self, message: str, position: int | None = None) -> CorruptFile:
        """The error that something at `position` (the current one) is not as it must be."""
        at = self.position if position is None else position
        return CorruptFile(f"{self._file.path.name}, byte {at:,}: {message}: fetch the file again")

    def take(self, count: int, what: str) -> int:
        """Makes the next `count` bytes available and steps over them; their position."""
        start = self.position
        end = start + count
        if end > self._filled:
            self._fill(end, what)
        self.position = end
        return start

    def u32(self, what: str) -> int:
        return _U32.unpack_from(self._bytes, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64.unpack_from(self._bytes, self.take(8, what))[0]

    def u64s(self, count: int, what: str) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}Q", self._bytes, self.take(8 * count, what))

    def text(self, what: str, max_bytes: int = MAX_HEADER_BYTES) -> str:
        """A string of at most `max_bytes`, valid UTF-8."""
        length = self.u64(f"the length of {what}")
        if length > max_bytes:
            raise self.wrong(
                f"{what} has {length:,} bytes, at most {max_bytes:,} expected", self.position - 8
            )
        start = self.take(length, what)
        try:
            return str(self._bytes[start : self.position], "utf-8")
        except UnicodeDecodeError as error:
            raise self.wrong(f"{what} is not UTF-8 ({error.reason})", start) from None

    def value(self, what: str) -> object:
        """A type and a value of it."""
        return self._value(self.u32(f"the type of {what}"), what, 0)

    def _value(self, kind: int, what: str, depth: int) -> object:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar.unpack_from(self._bytes, self.take(scalar.size, what))[0]
        if kind == _STRING:
            return self.text(what)
        if kind == _BOOL:
            flag = self._bytes[self.take(1, what)]
            if flag > 1:
                raise self.wrong(f"{what} is {flag}, a boolean (0 or 1) expected", self.position - 1)
            return flag == 1
        if kind == _ARRAY:
            return self._array(what, depth + 1)
        raise self.wrong(f"{what} has the type {kind}, 0 to 12 expected", self.position - 4)

    def _array(self, what: str, depth: int) -> object:
        kind = self.u32(f"the element type of {what}")
        count = self.u64(f"the length of {what}")
        if kind == _STRING:
            return self._string_array(count, what)
        if kind == _ARRAY:
            self._arrays += count
            if depth >= MAX_DEPTH or self._arrays > MAX_NESTED_ARRAYS:
                raise self.wrong(
                    f"{what} nests {count:,} arrays at depth {depth}; at most {MAX_NESTED_ARRAYS} to depth "
                    f"{MAX_DEPTH} expected",
                    self.position - 8,
                )
            return [self._array(what, depth + 1) for _ in range(count)]
        scalar = _SCALARS.get(kind)
        if scalar is None and kind != _BOOL:
            raise self.wrong(f"{what} has the element type {kind}, 0 to 12 expected", self.position - 12)
        dtype = np.dtype("u1" if scalar is None else scalar.format)
        start = self.take(count * dtype.itemsize, f"{what} of {count:,} elements")
        values = np.frombuffer(self._bytes[start : self.position], dtype)
        if scalar is None and (values > 1).any():
            raise self.wrong(f"{what} holds other bytes than 0 and 1, booleans expected", start)
        return values if scalar is not None else values.view(np.bool_)

    def _string_array(self, count: int, what: str) -> Strings:
        self._strings += count
        if self._strings > MAX_STRINGS or 8 * count > self._file.size - self.position:
            raise self.wrong(
                f"{what} has {count:,} strings; at most {MAX_STRINGS:,} of 8 bytes or more expected",
                self.position - 8,
            )
        starts = array("Q", bytes(8 * count))
        first = 0
        while first < count:
            room = (self._limit - self.position) // _LONGEST_SHORT_BYTES
            end = min(first + max(min(_BATCH, room), 1), count)
            if room == 0 or not self._short_strings(starts, first, end):
                self._any_strings(starts, first, end, what)
            first = end
        return Strings(self._bytes, starts, f"{self._file.path.name}: {what}")

    def _any_strings(self, starts: array[int], first: int, end: int, what: str) -> None:
        """Steps over strings first to end of an array and notes where they start."""
        for index in range(first, end):
            starts[index] = self.position
            self.take(self.u64(what), f"string {index:,} of {what}")

    def _short_strings(self, starts: array[int], first: int, end: int) -> bool:
        """As `_any_strings` in a third of the time, if all have less than 256 bytes; else it does nothing.

        Only the lowest byte of each length is looked at on the way, the other seven afterwards together. That
        much lies within the file and the limit."""
        position = self.position
        until = position + (end - first) * _LONGEST_SHORT_BYTES
        if until > self._filled:
            self._fill(until, "strings")
        source = self._bytes
        for index in range(first, end):
            starts[index] = position
            position += 8 + source[position]
        lengths = self._lengths[np.frombuffer(starts, np.int64)[first:end]]
        if (lengths > 255).any():
            return False
        self.position = position
        return True

    def _fill(self, end: int, what: str) -> None:
        """Reads on until at least `end`."""
        if end > self._limit:
            if end <= self._file.size:
                raise self.wrong(f"the header has more than the limit of {MAX_HEADER_BYTES:,} bytes")
            raise self.wrong(f"{what} reaches to byte {end:,}, the file ends at {self._file.size:,}")
        until = min(max(end, self._filled + _READ_BYTES), self._limit)
        self._file.read_into(self._filled, self._bytes[self._filled : until], "the header")
        self._filled = until
