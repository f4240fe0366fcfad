"""Unit vectors in two files, as float32 and as int8, and an exact search over all of them.

The int8 file has the format of int8 weights, so the product of a query with all vectors is the kernel that
runs models, which reads memory at its speed. What that product says is off by at most a bound; every vector
within it is scored again in float32, so the result is that of float32 over all vectors.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import InvalidRequest
from headrace.ops.value import Array
from headrace.search.index import IndexDamaged
from headrace.weights.formats.hadamard import rotate, rotated_k, rotation_block

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

TILE = 32
"""Vectors that the int8 format keeps together."""
MAX_SIZE = 16_384
_BLOCK = 1024  # scores of which the best is looked at first
_ROUNDING = 2e-5  # of float32, in sums of numbers whose squares sum to 1
_REFUSED = np.float32(-8)  # added to scores from -1 to 1
_FEW = 64  # where fewer than one vector in so many may be found, only these are scored
_PORTION = 8192  # vectors that are scored in float32 at a time
MAX_TIES = 10_000
"""Vectors beyond the limit with the last one's score that are told apart by their keys."""


class Nearest(Struct, frozen=True):
    """Ids by falling score; all that share the last score are there, up to MAX_TIES."""

    ids: Ids
    scores: Array


def unit(vectors: Array, names: list[str]) -> Array:
    """The vectors [count, size] with length 1, float32. InvalidRequest names one with a NaN, an infinity or
    no direction."""
    wide = np.asarray(vectors, np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    wrong = np.flatnonzero(~np.isfinite(lengths[:, 0]) | (lengths[:, 0] == 0))
    if len(wrong):
        name, found = names[int(wrong[0])], lengths[int(wrong[0]), 0]
        what = "is zero, so it has no direction" if found == 0 else "has a NaN or an infinity"
        raise InvalidRequest(f"the vector of {name} {what}: use another model", code="invalid_vector")
    return (wide / lengths).astype(np.float32)


class VectorFiles:
    """The pair of files with one number in a folder. Rows are only added; what a row holds never changes."""

    def __init__(self, folder: Path, number: int, size: int) -> None:
        self.size = size
        self.floats = folder / f"vectors-{number}.f32"
        self.codes = folder / f"vectors-{number}.i8"
        self._pool: _native.Pool | None = None
        self._mapped: tuple[int, Array, NDArray[np.uint8]] | None = None

    def append(self, first: int, vectors: Array) -> float:
        """Write unit vectors as the rows from `first` on, durably; returns the largest error of their int8.

        What rows from `first` on held before, no reader has seen. The tile with the row before `first` is
        written again with the same bytes for the rows that are there.
        """
        start = first // TILE * TILE
        before = self._read_rows(start, first)
        rows = np.ascontiguousarray(np.concatenate([before, vectors]), np.float32)
        packed = np.zeros(_native.packed_nbytes("int8", len(rows), self.size), np.uint8)
        tiles = -(-len(rows) // TILE)
        source = rows.view(np.uint8).reshape(-1)
        _native.pack(self.pool, "int8", source, "F32", len(rows), self.size, 0, tiles, packed)
        _write(self.floats, first * self.size * 4, np.ascontiguousarray(vectors, np.float32).tobytes())
        _write(self.codes, start // TILE * self._tile_bytes, packed.tobytes())
        numbers = np.arange(len(rows), dtype=np.int32)
        near = _native.unpack_rows("int8", packed, len(rows), self.size, numbers)
        return float(np.sqrt(((near - rows).astype(np.float64) ** 2).sum(axis=1)).max(initial=0.0))

    def rows(self, ids: Ids, count: int) -> Array:
        """The vectors of some of the first `count` rows."""
        return np.asarray(self._map(count)[0][ids])

    def products(self, query: Array, ids: Ids, count: int) -> Array:
        """The products of a unit query with some of the first `count` rows, as `nearest` has them."""
        return self._exact(query, ids, count)

    def nearest(self, query: Array, count: int, allowed: Mask | None, limit: int, error: float) -> Nearest:
        """The `limit` vectors with the largest products with a unit query, among the first `count` rows and
        those that a mask [count] allows. `error` is the largest that `append` has returned for them."""
        if count == 0 or limit < 1:
            return Nearest(np.empty(0, np.int64), np.empty(0, np.float32))
        found = None if allowed is None else np.flatnonzero(allowed)
        if found is None or len(found) * _FEW > count:
            found = self._candidates(query, count, allowed, limit, error)
        return best(found, self._exact(query, found, count), limit)

    @property
    def pool(self) -> _native.Pool:
        """The threads of the kernel, made with the first use."""
        if self._pool is None:
            self._pool = _native.Pool(min(len(os.sched_getaffinity(0)), 16))
        return self._pool

    def _candidates(self, query: Array, count: int, allowed: Mask | None, limit: int, error: float) -> Ids:
        """Rows among which the best `limit` are for certain."""
        codes = self._map(count)[1]
        weight = ("int8", count, self.size, codes)
        scores = _native.linear(self.pool, np.ascontiguousarray(query[None]), [weight], [None])[0][0]
        if allowed is not None:  # a fifth of the time that setting them by a mask takes
            scores += _REFUSED * (1 - allowed.view(np.int8).astype(np.float32))
        slack = 2 * (error + self._query_error(query) * (1 + error) + _ROUNDING)
        blocks = count // _BLOCK
        tops = np.append(
            scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1), scores[blocks * _BLOCK :]
        )
        found = np.flatnonzero(scores >= max(_largest(tops, limit) - slack, _REFUSED / 2))
        return found[scores[found] >= _largest(scores[found], limit) - slack]

    def _query_error(self, query: Array) -> float:
        """The longest that the difference of a query and its int8 may be."""
        padded = np.zeros(rotated_k(self.size), np.float32)
        padded[: self.size] = query
        largest = float(np.abs(rotate(padded, rotation_block(self.size))).max())
        return largest / 127 / 2 * len(padded) ** 0.5

    def _exact(self, query: Array, ids: Ids, count: int) -> Array:
        """Products in float64 rounded to float32, each the same whatever else is scored."""
        floats, wide = self._map(count)[0], query.astype(np.float64)
        scores = np.empty(len(ids), np.float32)
        for start in range(0, len(ids), _PORTION):
            part = slice(start, start + _PORTION)
            scores[part] = products_of(floats[ids[part]], wide)
        return scores

    def _read_rows(self, first: int, end: int) -> Array:
        if first == end:
            return np.empty((0, self.size), np.float32)
        with self.floats.open("rb") as file:
            file.seek(first * self.size * 4)
            return np.frombuffer(file.read((end - first) * self.size * 4), np.float32).reshape(-1, self.size)

    def _map(self, count: int) -> tuple[Array, NDArray[np.uint8]]:
        """The first `count` rows of both files; FileNotFoundError where they are gone."""
        mapped = self._mapped
        if mapped is None or mapped[0] < count:
            mapped = self._mapped = self._open()
        held, floats, codes = mapped
        if held < count:
            raise IndexDamaged(
                f"{self.floats} has {held:,} of {count:,} vectors: delete the folder and ingest again"
            )
        return floats[:count], codes[: -(-count // TILE) * self._tile_bytes]

    def _open(self) -> tuple[int, Array, NDArray[np.uint8]]:
        floats = np.frombuffer(_mapped(self.floats), np.float32)
        codes = np.frombuffer(_mapped(self.codes), np.uint8)
        held = min(len(floats) // self.size, len(codes) // self._tile_bytes * TILE)
        return held, floats[: len(floats) // self.size * self.size].reshape(-1, self.size), codes

    @property
    def _tile_bytes(self) -> int:
        return _native.packed_nbytes("int8", TILE, self.size)


def products_of(rows: Array, query: NDArray[np.float64]) -> Array:
    """Products of rows [count, size] with a query in float64, the same whatever other rows there are."""
    return (rows * query).sum(axis=1).astype(np.float32)


def best(ids: Ids, scores: Array, limit: int) -> Nearest:
    """The best `limit` of ids with their scores, as `Nearest` has them."""
    if len(ids) > limit:
        kept = np.flatnonzero(scores >= _largest(scores, limit))
        ids, scores = ids[kept], scores[kept]
    order = np.lexsort((ids, -scores))[: limit + MAX_TIES]
    return Nearest(ids[order], scores[order])


def _largest(scores: Array, rank: int) -> float:
    """The score of that rank, from 1; minus infinity where there are fewer."""
    if len(scores) < rank:
        return -np.inf
    return float(np.partition(scores, len(scores) - rank)[len(scores) - rank])


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _write(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
