"""Reader of GGUF files (versions 2 and 3, little endian) that survives hostile ones.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Read with pread, see decision 0001.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.gguf.header_reader import HeaderReader, Metadata
from headrace.weights.pread_file import PositionedFile
from headrace.weights.quant_types import BY_ID, BY_NAME, READABLE, dequantize
from headrace.weights.quant_types.block_type import BlockType
from headrace.weights.tensor_file import TensorFile, TensorInfo

MAGIC = b"GGUF"
# Checked before anything is read. Public files have 100 keys and, experts being merged, 2,000 tensors.
MAX_KEYS = 4096
MAX_TENSORS = 8192
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 64
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
_LARGEST = 2**63 - 1
_CHUNK_BYTES = 256 << 10  # dequantized at once: what NumPy makes on the way stays in the processor's cache


class GgufFile(TensorFile):
    """An open file. Every violation of the format raises CorruptFile, at once and before any tensor is
    read. `tensors` have the row-major shape, their `dtype` is the name of the ggml type."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            reader = HeaderReader(self._file)
            self.version, tensor_count, key_count = _start(reader, path.name)
            self.metadata = Metadata(_metadata(reader, key_count))
            self.tensors = _tensors(reader, tensor_count, self.metadata, self._file)
            self._header = reader.done
        except BaseException:
            self.close()
            raise

    @cached_property
    def header_sha256(self) -> str:
        return hashlib.sha256(self._header).hexdigest()

    def float32(self, info: TensorInfo) -> NDArray[np.float32]:
        """The tensor dequantized. Raises UnsupportedModel for types without dequantization."""
        kind = BY_NAME[info.dtype]
        result = np.empty(info.shape, np.float32)
        flat = result.reshape(-1)
        step = max(_CHUNK_BYTES // kind.block_bytes, 1) * kind.block_bytes
        raw = np.empty(min(step, info.nbytes), np.uint8)
        done = 0
        for start in range(0, info.nbytes, step):
            part = raw[: min(step, info.nbytes - start)]
            self.read_into(info, start, part.data)
            values = dequantize(kind, part)
            flat[done : done + values.size] = values
            done += values.size
        return result


class _Entry(Struct, frozen=True):
    name: str
    kind: BlockType
    shape: tuple[int, ...]
    nbytes: int
    offset: int  # from the start of the data
    position: int  # of its entry in the header


def _start(reader: HeaderReader, name: str) -> tuple[int, int, int]:
    """Version, number of tensors, number of keys."""
    reader.take(4, "the magic number")
    if bytes(reader.done) != MAGIC:
        raise reader.wrong(f"the file begins with {bytes(reader.done)!r}, {MAGIC!r} expected", 0)
    version = reader.u32("the version")
    if version not in (2, 3):
        big = version & 0xFFFF == 0 and version > 0
        what = "big-endian numbers" if big else f"version {version}"
        raise UnsupportedModel(
            f"{name} is a GGUF file with {what}; supported are versions 2 and 3, little endian: convert the "
            "model again"
        )
    tensor_count, key_count = reader.u64("the number of tensors"), reader.u64("the number of keys")
    for count, limit, what in ((tensor_count, MAX_TENSORS, "tensors"), (key_count, MAX_KEYS, "keys")):
        if count > limit:
            raise reader.wrong(f"the file announces {count:,} {what}, at most {limit:,} expected", 8)
    return version, tensor_count, key_count


def _metadata(reader: HeaderReader, count: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for index in range(count):
        start = reader.position
        key = reader.text(f"key {index:,}", MAX_KEY_BYTES)
        if key in values:
            raise reader.wrong(f"the key {key[:200]!r} is there twice, once expected", start)
        values[key] = reader.value(f"the value of {key[:200]!r}")
    return values


def _tensors(
    reader: HeaderReader, count: int, metadata: Metadata, file: PositionedFile
) -> dict[str, TensorInfo]:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment.bit_count() != 1:
        raise reader.wrong(f"general.alignment is {alignment!r:.40}, a power of two expected")
    entries: dict[str, _Entry] = {}
    for index in range(count):
        entry = _tensor(reader, index, alignment)
        if entry.name in entries:
            raise reader.wrong(f"there are two tensors {entry.name!r}, one expected", entry.position)
        entries[entry.name] = entry
    data_start = -(-reader.position // alignment) * alignment
    _check_places(reader, entries, data_start, file.size)
    return {
        entry.name: TensorInfo(
            entry.name, entry.kind.name, entry.shape, entry.nbytes, file.path, data_start + entry.offset
        )
        for entry in entries.values()
    }


def _tensor(reader: HeaderReader, index: int, alignment: int) -> _Entry:
    position = reader.position
    what = f"tensor {index:,}"
    name = reader.text(f"the name of {what}", MAX_NAME_BYTES)
    dimensions = reader.u32(what)
    if dimensions > MAX_DIMENSIONS:
        raise reader.wrong(
            f"{name!r} has {dimensions:,} dimensions, at most {MAX_DIMENSIONS} expected", position
        )
    shape = reader.u64s(dimensions, what)
    type_id, offset = reader.u32(what), reader.u64(what)
    kind = BY_ID.get(type_id)
    if kind is None:
        known = ", ".join(kind.name for kind in READABLE)
        raise UnsupportedModel(
            f"tensor {name!r} has the type number {type_id}, which this version does not know: quantize the "
            f"model as one of {known}"
        )
    elements = prod(shape)
    if elements > _LARGEST:
        raise reader.wrong(f"{name!r} has more than 2^63 entries, shape {shape}", position)
    if (shape[0] if shape else 1) % kind.block_size:
        raise reader.wrong(
            f"rows of {name!r} have {shape[:1]} entries, a multiple of {kind.block_size} expected for "
            f"{kind.name}",
            position,
        )
    if offset % alignment:
        raise reader.wrong(f"{name!r} lies at {offset:,}, a multiple of {alignment} expected", position)
    nbytes = elements // kind.block_size * kind.block_bytes
    return _Entry(name, kind, shape[::-1], nbytes, offset, position)


def _check_places(reader: HeaderReader, entries: dict[str, _Entry], data_start: int, size: int) -> None:
    """Every tensor lies within the file and none in another."""
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.offset, entry.nbytes)):
        if entry.nbytes == 0:
            continue
        if entry.offset < end:
            raise reader.wrong(
                f"{entry.name!r} begins at {entry.offset:,} inside another tensor, which ends at {end:,}",
                entry.position,
            )
        end = entry.offset + entry.nbytes
        if data_start + end > size:
            raise reader.wrong(
                f"{entry.name!r} reaches to byte {data_start + end:,}, the file ends at {size:,}: it is cut "
                "short or damaged",
                entry.position,
            )


def corrupt_metadata(file: str, key: str, value: object, wanted: str) -> CorruptFile:
    """The error for a value of the metadata that is absent (None) or of the wrong type."""
    found = "is missing" if value is None else f"is {value!r:.80}"
    return CorruptFile(f"{file}: the key {key!r} {found}, {wanted} expected: fetch the file again")
