"""The nearest of up to some 100,000 vectors, in memory: signs first, then the numbers of who is left.

A vector is rotated by a fixed random rotation. The signs of its numbers, one bit each, differ from those of
another one in a part `angle / pi` of places on average (Charikar 2002, "Similarity estimation techniques from
rounding algorithms"). All vectors whose signs differ in no more places than that of the least similarity, and
four standard deviations, are compared exactly, by one byte per number. Reading all bytes of 100,000 vectors
takes longer than reading their signs by the factor by which these are fewer, eight.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WORD = 64
BLOCK = 32 * 1024
MAX_COMPARED = 4096
"""Vectors that are compared exactly. Where the signs leave more, the nearest by signs."""


class NearIndex:
    """Vectors [size] of length 1, each with an id. `size` is a multiple of 64."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._count = 0
        self._ids: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._signs = np.zeros((size // WORD, 64), np.uint64)  # a row for each word of all vectors
        self._codes = np.zeros((64, size), np.int8)
        self._scales = np.zeros(64, np.float32)
        self._words = np.empty(BLOCK, np.uint64)

    def __len__(self) -> int:
        return self._count

    def add(self, id: bytes, vector: Floats) -> None:
        """Take a vector in; one of the same id goes."""
        self.remove(id)
        if self._count == len(self._scales):
            self._grow()
        place, self._count = self._count, self._count + 1
        rotated = self._rotated(vector)
        scale = max(float(np.abs(rotated).max()) / 127, 1e-30)
        self._signs[:, place] = self._signs_of(rotated)
        self._codes[place] = np.rint(rotated / scale)
        self._scales[place] = scale
        self._ids.append(id)
        self._places[id] = place

    def remove(self, id: bytes) -> None:
        """Forget a vector, if it is there: the last one takes its place."""
        place = self._places.pop(id, None)
        if place is None:
            return
        last = self._count = self._count - 1
        moved = self._ids.pop()
        if place != last:
            self._signs[:, place] = self._signs[:, last]
            self._codes[place], self._scales[place] = self._codes[last], self._scales[last]
            self._ids[place], self._places[moved] = moved, place

    def search(self, vector: Floats, count: int, least: float) -> list[tuple[float, bytes]]:
        """Up to `count` vectors with a cosine of at least `least`, the nearest first."""
        if not self._count:
            return []
        rotated = self._rotated(vector)
        places = self._like(self._signs_of(rotated), least)
        near = self._codes[places].astype(np.float32) @ rotated * self._scales[places]
        kept = np.flatnonzero(near >= least)
        order = kept[np.argsort(-near[kept], kind="stable")[:count]]
        return [(float(near[one]), self._ids[places[one]]) for one in order]

    def _like(self, signs: NDArray[np.uint64], least: float) -> NDArray[np.intp]:
        differing = np.zeros(self._count, np.uint16)
        for start in range(0, self._count, BLOCK):  # what is written for a block stays in the core's cache
            block = self._signs[:, start : min(start + BLOCK, self._count)]
            words, places = self._words[: block.shape[1]], differing[start : start + BLOCK]
            for row, word in zip(block, signs, strict=True):
                np.bitwise_xor(row, word, out=words)
                places += _bits(words)
        part = math.acos(max(-1.0, min(1.0, least))) / math.pi
        most = self.size * part + 4 * math.sqrt(self.size * part * (1 - part)) + 1
        places = np.flatnonzero(differing <= most)
        if len(places) > MAX_COMPARED:
            places = places[np.argpartition(differing[places], MAX_COMPARED)[:MAX_COMPARED]]
        return places

    def _rotated(self, vector: Floats) -> Floats:
        return np.asarray(vector, np.float32) @ _rotation(self.size)

    def _signs_of(self, rotated: Floats) -> NDArray[np.uint64]:
        return np.packbits(rotated > 0).view(np.uint64)

    def _grow(self) -> None:
        more = len(self._scales)
        self._signs = np.pad(self._signs, ((0, 0), (0, more)))
        self._codes = np.pad(self._codes, ((0, more), (0, 0)))
        self._scales = np.pad(self._scales, (0, more))


def _bits(words: NDArray[np.uint64]) -> NDArray[np.integer[Any]]:
    """The bits that are set in each word."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    return np.unpackbits(words.view(np.uint8)).reshape(len(words), WORD).sum(axis=1, dtype=np.uint16)  # 1.26


@lru_cache(4)
def _rotation(size: int) -> Floats:
    numbers = np.random.default_rng(0x6E656172).standard_normal((size, size))
    return np.linalg.qr(numbers)[0].astype(np.float32)
