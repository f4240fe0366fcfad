"""An adapter as its files say: for each matrix that it changes, two of low rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.ops.value import Array

MAX_RANK = 512  # kMaxLoraRank in native/kernels/arguments.hpp
MAX_TENSORS = 65_536
_MOST = float(np.finfo(np.float32).max)


class LoraMatrices(Struct, frozen=True, eq=False):
    """y += scale * (x a^T) b^T, with a [rank, inputs] and b [outputs, rank], float32."""

    a: Array
    b: Array
    scale: float


class AdapterFile(Struct, frozen=True, eq=False):
    """The matrices of an adapter, by the name of the tensor that each pair changes. `digest` is sha256 over
    all of them, so that two adapters with one digest give the same output."""

    base: str
    matrices: Mapping[str, LoraMatrices]
    digest: str


def adapter_of(base: str, matrices: Mapping[str, LoraMatrices], file: str) -> AdapterFile:
    """The adapter, checked; CorruptFile or UnsupportedModel where its matrices cannot be used."""
    if not matrices:
        raise CorruptFile(f"{file} holds no matrix: it is no adapter")
    for name, pair in matrices.items():
        _check(name, pair, file)
    return AdapterFile(base, matrices, _digest(matrices))


def _check(name: str, pair: LoraMatrices, file: str) -> None:
    if pair.a.ndim != 2 or pair.b.ndim != 2 or pair.a.shape[0] != pair.b.shape[1] or not pair.a.size:
        raise CorruptFile(f"{file}: {name} has the shapes {pair.a.shape} and {pair.b.shape}")
    if pair.a.shape[0] > MAX_RANK:
        raise UnsupportedModel(f"{file}: {name} has the rank {pair.a.shape[0]:,}, at most {MAX_RANK} work")
    if not (np.isfinite(pair.a).all() and np.isfinite(pair.b).all()):
        raise CorruptFile(f"{file}: {name} holds numbers that are not finite")
    if not abs(pair.scale) <= _MOST:
        raise CorruptFile(f"{file}: {name} has the scale {pair.scale:g}, which is no float32: see its alpha")


def _digest(matrices: Mapping[str, LoraMatrices]) -> str:
    digest = hashlib.sha256(b"lora")
    for name, pair in sorted(matrices.items()):
        digest.update(f"\n{name} {pair.a.shape} {pair.b.shape} {pair.scale!r} ".encode())
        digest.update(np.ascontiguousarray(pair.a).data)
        digest.update(np.ascontiguousarray(pair.b).data)
    return digest.hexdigest()


def check_count(names: Iterable[str], file: str) -> None:
    """CorruptFile where there are too many tensors."""
    count = sum(1 for _ in names)
    if count > MAX_TENSORS:
        raise CorruptFile(f"{file} holds {count:,} tensors, at most {MAX_TENSORS:,} are read")
