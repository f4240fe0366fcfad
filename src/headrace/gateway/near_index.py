"""The nearest of up to some 100,000 vectors, in memory: signs first, then the numbers of who is left.

A vector is rotated by a fixed random rotation. The signs of its numbers, one bit each, differ from those of
another one in a part `angle / pi` of places on average (Charikar 2002, "Similarity estimation techniques from
rounding algorithms"). All vectors whose signs differ in no more places than that of the least similarity, and
four standard deviations (three in the first words), are compared exactly, by one byte per number: of vectors
that have just the least similarity one in 300 at most is not found, of nearer ones fewer. Reading all bytes
of 100,000 vectors takes longer than reading their signs by the factor by which these are fewer, eight. Of
most vectors the first one to four words of 64 signs tell that they are far; of the others all are read.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WORD = 64
BLOCK = 32 * 1024
MAX_FIRST_WORDS = 4  # a byte counts in how many places they differ; 256, which it cannot, is compared exactly
FIRST_DEVIATIONS = 3.0  # a vector is lost where it lies beyond, and only time is lost by that
FAR_DEVIATIONS = 1.8
"""By so many standard deviations a vector of no likeness must lie beyond the limit of the first words."""
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
        self._make_scratch()

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
        # Not by BLAS: it would take threads for it, and wait for them where cores are busy.
        near = np.einsum("pn,n->p", self._codes[places], rotated, dtype=np.float32) * self._scales[places]
        kept = np.flatnonzero(near >= least)
        order = kept[np.argsort(-near[kept], kind="stable")[:count]]
        return [(float(near[one]), self._ids[places[one]]) for one in order]

    def _like(self, signs: NDArray[np.uint64], least: float) -> NDArray[np.intp]:
        part = math.acos(max(-1.0, min(1.0, least))) / math.pi
        first = _first_words(part, len(signs))
        differing = self._differing_first(signs[:first])
        places = np.flatnonzero(differing <= min(_most_differing(first * WORD, part, FIRST_DEVIATIONS), 255))
        if first < len(signs):
            differing = differing.take(places).astype(np.uint16)
            for row, word in zip(self._signs[first:], signs[first:], strict=True):
                differing += _bits(row.take(places) ^ word)
            near = np.flatnonzero(differing <= _most_differing(self.size, part))
            differing, places = differing[near], places[near]
        else:
            differing = differing[places]
        if len(places) > MAX_COMPARED:
            places = places[np.argpartition(differing, MAX_COMPARED)[:MAX_COMPARED]]
        return places

    def _differing_first(self, signs: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """In how many places the first words of each vector differ from these."""
        differing = self._differing[: self._count]
        for start in range(0, self._count, BLOCK):  # what is written for a block stays in the core's cache
            block = self._signs[: len(signs), start : min(start + BLOCK, self._count)]
            places = differing[start : start + BLOCK]
            words, counts = self._words[: len(places)], self._counts[: len(places)]
            for number, (row, word) in enumerate(zip(block, signs, strict=True)):
                np.bitwise_xor(row, word, out=words)
                _bits(words, out=counts if number else places)
                if number:
                    places += counts
        return differing

    def _rotated(self, vector: Floats) -> Floats:
        return np.einsum("n,nm->m", np.asarray(vector, np.float32), _rotation(self.size))

    def _signs_of(self, rotated: Floats) -> NDArray[np.uint64]:
        return np.packbits(rotated > 0).view(np.uint64)

    def _grow(self) -> None:
        more = len(self._scales)
        self._signs = np.pad(self._signs, ((0, 0), (0, more)))
        self._codes = np.pad(self._codes, ((0, more), (0, 0)))
        self._scales = np.pad(self._scales, (0, more))
        self._make_scratch()

    def _make_scratch(self) -> None:
        """Where a search writes."""
        count = len(self._scales)
        block = min(BLOCK, count)
        self._words, self._counts = np.empty(block, np.uint64), np.empty(block, np.uint8)
        self._differing = np.empty(count, np.uint8)


def _first_words(part: float, words: int) -> int:
    """The fewest words that tell most vectors of no likeness, of whose signs half differ, from those that
    differ in this part of them."""
    for count in range(1, MAX_FIRST_WORDS):
        unlike = count * WORD / 2 - FAR_DEVIATIONS * math.sqrt(count * WORD) / 2
        if count == words or unlike >= _most_differing(count * WORD, part, FIRST_DEVIATIONS):
            return count
    return min(MAX_FIRST_WORDS, words)


def _most_differing(signs: int, part: float, deviations: float = 4.0) -> int:
    """The most of so many signs that differ, but for some standard deviations, where this part does. A whole
    number: NumPy would make numbers of eight bytes of all counts to compare them with another one."""
    return int(signs * part + deviations * math.sqrt(signs * part * (1 - part)) + 1)


def _bits(words: NDArray[np.uint64], out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """The bits that are set in each word."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words, out=out)
    found = np.unpackbits(words[..., None].view(np.uint8), axis=-1).sum(-1, dtype=np.uint8)  # NumPy 1.26
    if out is None:
        return found
    out[:] = found
    return out


@lru_cache(4)
def _rotation(size: int) -> Floats:
    numbers = np.random.default_rng(0x6E656172).standard_normal((size, size))
    return np.linalg.qr(numbers)[0].astype(np.float32)
