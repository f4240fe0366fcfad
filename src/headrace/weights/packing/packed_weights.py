"""Weights in the layout of the native kernels: packed from a checkpoint, or read from the disk cache."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import CorruptFile, ProgramError, UnsupportedModel, UsageError
from headrace.weights.checkpoint_reader import TensorReader
from headrace.weights.formats import FORMATS, GROUPED, from_rows
from headrace.weights.formats.column_panels import STRIP, strip_count
from headrace.weights.packing import packed_cache
from headrace.weights.packing.packed_cache import CacheTroubles
from headrace.weights.quant_types import BY_NAME, ROTATED, WITHOUT_KERNEL, dequantize

# Part of every cache file's name and header. Raise it whenever a packed layout or a quantizer changes.
LAYOUT_VERSION = 2  # 1 had no checksums
_ALIGNMENT = 4096
_BLOCK_BYTES = 16 << 20  # of a tensor in memory at once; there are two such buffers

Progress = Callable[[int, int], None]


class WeightSpec(Struct, frozen=True):
    """A tensor of shape [n, k] (n outputs, k inputs) and the format to have it in."""

    name: str
    n: int
    k: int
    format: str


class PackedWeight(Struct, frozen=True):
    """`data` is 4,096-byte aligned memory in the layout of native/formats/<format>.hpp, or grouped.hpp."""

    format: str
    n: int
    k: int
    data: NDArray[np.uint8]


class _Place(Struct, frozen=True):
    wanted: WeightSpec
    offset: int
    nbytes: int


class _Block(Struct, frozen=True):
    """Rows of a tensor that are read and packed together; whole strips but for the tensor's last rows."""

    place: _Place
    start_row: int
    rows: int
    nbytes: int


def format_of(choice: str, dtype: str) -> str:
    """The format for a tensor stored as `dtype` when the user chose `choice` (`keep`, or a format).

    Raises UsageError, and UnsupportedModel where `dtype` cannot be kept.
    """
    if choice == "keep" and dtype.lower() in (*FORMATS, *GROUPED):
        return dtype.lower()
    if choice in FORMATS:
        return choice
    if choice == "keep" and dtype in ROTATED:
        return ROTATED[dtype]
    if choice == "keep" and dtype in WITHOUT_KERNEL:
        return "int8"
    if choice == "keep":
        raise UnsupportedModel(
            f"weights of the type {dtype} cannot be kept as they are: choose "
            "--quantization int8, int4 or bf16"
        )
    raise UsageError(f"there is no weight format {choice!r}: use keep, {', '.join(FORMATS)}")


def predicted_bytes(wanted: Sequence[WeightSpec]) -> int:
    """Memory that load_packed's result takes."""
    return _total(_places(wanted))


def load_packed(
    checkpoint: TensorReader,
    wanted: Sequence[WeightSpec],
    pool: _native.Pool,
    *,
    cache: Path | None,
    progress: Progress | None = None,
    troubles: CacheTroubles | None = None,
) -> dict[str, PackedWeight]:
    """All wanted weights by name, in one buffer on huge pages.

    `cache` is the folder of packed files, None for none. What cannot be read from there is packed from
    the checkpoint and written there; whatever is wrong with the cache is logged, counted in `troubles` and
    never an error.
    `progress` gets (bytes done, bytes in all). Raises CorruptFile, UnsupportedModel.
    """
    places = _places(wanted)
    for place in places:
        _check_tensor(checkpoint, place.wanted)
    if not places:
        return {}
    progress = progress or (lambda done, total: None)
    header = _header(checkpoint.fingerprint, places)
    path = None if cache is None else cache / f"{hashlib.sha256(header).hexdigest()[:40]}.packed"
    troubles = troubles or CacheTroubles()
    packed = None if path is None else packed_cache.read(path, header, _total(places), progress, troubles)
    if packed is None:
        packed = _native.allocate(_total(places))
        _pack(checkpoint, places, pool, packed, progress)
        if path is not None:
            packed_cache.write(path, header, packed, troubles)
    return {
        place.wanted.name: PackedWeight(
            place.wanted.format,
            place.wanted.n,
            place.wanted.k,
            packed[place.offset : place.offset + place.nbytes],
        )
        for place in places
    }


def _places(wanted: Sequence[WeightSpec]) -> list[_Place]:
    """Where each weight lies in the buffer: by name, so that the order of asking does not matter."""
    by_name = {weight.name: weight for weight in wanted}
    for weight in wanted:
        if by_name[weight.name] != weight:
            raise ProgramError(f"{weight.name} is wanted both as {weight} and as {by_name[weight.name]}")
    places: list[_Place] = []
    offset = 0
    for name in sorted(by_name):
        weight = by_name[name]
        try:
            nbytes = _native.packed_nbytes(weight.format, weight.n, weight.k)
        except ValueError as error:
            raise UnsupportedModel(f"tensor {name!r}: {error}") from None
        places.append(_Place(weight, offset, nbytes))
        offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return places


def _total(places: list[_Place]) -> int:
    return -(-(places[-1].offset + places[-1].nbytes) // _ALIGNMENT) * _ALIGNMENT if places else 0


def _check_tensor(checkpoint: TensorReader, wanted: WeightSpec) -> None:
    info = checkpoint.info(wanted.name)
    if info.shape != (wanted.n, wanted.k):
        raise CorruptFile(
            f"tensor {wanted.name!r} has the shape {list(info.shape)}, config.json asks for "
            f"{[wanted.n, wanted.k]}: the two files do not belong together"
        )
    checkpoint.row_dtype(wanted.name)


def _header(fingerprint: str, places: list[_Place]) -> bytes:
    """What a cache file for exactly this begins with; readers compare it whole.

    Little-endian: magic, u32 layout version, u32 length of the JSON, u64 length of header and weights; the
    JSON; zeros up to the alignment.
    """
    weights = [
        {
            "name": place.wanted.name,
            "format": place.wanted.format,
            "shape": [place.wanted.n, place.wanted.k],
            "offset": place.offset,
            "bytes": place.nbytes,
        }
        for place in places
    ]
    text = json.dumps({"checkpoint": fingerprint, "weights": weights}).encode()
    length = -(-(24 + len(text)) // _ALIGNMENT) * _ALIGNMENT
    start = struct.pack("<8sIIQ", b"HEADRACE", LAYOUT_VERSION, len(text), length + _total(places))
    return (start + text).ljust(length, b"\0")


def _blocks(checkpoint: TensorReader, places: list[_Place]) -> Iterator[_Block]:
    for place in places:
        n, k = place.wanted.n, place.wanted.k
        row_bytes = BY_NAME[checkpoint.row_dtype(place.wanted.name)].row_bytes(k)
        step = max(_BLOCK_BYTES // max(row_bytes, 1) // STRIP, 1) * STRIP
        for start in range(0, n, step):
            rows = min(step, n - start)
            yield _Block(place, start, rows, rows * row_bytes)


def _pack(
    checkpoint: TensorReader,
    places: list[_Place],
    pool: _native.Pool,
    packed: NDArray[np.uint8],
    progress: Progress,
) -> None:
    """Packs block by block; while all threads of the pool pack one, another reads the next."""
    blocks = list(_blocks(checkpoint, places))
    total = sum(block.nbytes for block in blocks)
    size = max(block.nbytes for block in blocks)
    buffers = [np.empty(size, np.uint8), np.empty(size, np.uint8)]

    def read(index: int) -> None:
        block = blocks[index]
        checkpoint.read_rows(block.place.wanted.name, block.start_row, block.rows, buffers[index % 2].data)

    done = 0
    with ThreadPoolExecutor(1, "headrace-read") as reader:
        pending = reader.submit(read, 0)
        for index, block in enumerate(blocks):
            pending.result()
            if index + 1 < len(blocks):
                pending = reader.submit(read, index + 1)
            _pack_block(checkpoint, block, pool, buffers[index % 2][: block.nbytes], packed)
            done += block.nbytes
            progress(done, total)


def _pack_block(
    checkpoint: TensorReader,
    block: _Block,
    pool: _native.Pool,
    source: NDArray[np.uint8],
    packed: NDArray[np.uint8],
) -> None:
    place, wanted = block.place, block.place.wanted
    strips = block.start_row // STRIP, strip_count(block.start_row + block.rows)
    target = packed[place.offset : place.offset + place.nbytes]
    dtype = checkpoint.row_dtype(wanted.name)
    if ROTATED.get(dtype) == wanted.format:  # they are what packing gives, in another order
        of_strip = place.nbytes // strip_count(wanted.n)
        rows = from_rows(wanted.format, source.reshape(block.rows, -1), wanted.k)
        target[strips[0] * of_strip : strips[1] * of_strip] = rows
        return
    if dtype in ROTATED:
        source, dtype = dequantize(BY_NAME[dtype], source).view(np.uint8), "F32"
    try:
        _native.pack(pool, wanted.format, source, dtype, wanted.n, wanted.k, *strips, target)
    except ValueError as error:
        raise CorruptFile(f"tensor {wanted.name!r}: {error}") from None
