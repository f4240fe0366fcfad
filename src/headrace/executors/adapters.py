"""Low-rank adapters beside a program's products: which weights they change, and their definition in NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.ops.value import Array, Ints
from headrace.program.step import Step
from headrace.weights.adapters.adapter_file import LoraMatrices

Bytes = NDArray[np.uint8]
MAX_ADAPTERS = 1024
PANEL = 32  # output columns that native code computes together, and inputs
BLOCK = 8  # rows of A that lie together


class Adapter(Struct, frozen=True, eq=False):
    """An adapter fitted to a program: its matrices by the name of the program's weight."""

    matrices: Mapping[str, LoraMatrices]

    def nbytes(self, number_bytes: int) -> int:
        """Its bytes in native memory, with numbers of so many bytes."""
        return sum(_entries(pair) for pair in self.matrices.values()) * number_bytes


def _entries(pair: LoraMatrices) -> int:
    rank = pair.a.shape[0] + pair.a.shape[0] % 2
    return rank * (-(-pair.a.shape[1] // PANEL) + -(-pair.b.shape[0] // PANEL)) * PANEL


def row_adapters(step: Step) -> Ints | None:
    """The slot of each token's adapter, [T], -1 for none; None: no sequence has one."""
    if step.adapters is None or not (step.adapters >= 0).any():
        return None
    return np.repeat(step.adapters, np.diff(step.query_starts))


def changing(weight: str, adapters: Mapping[int, Adapter]) -> dict[int, LoraMatrices]:
    """Of the adapters by slot, the matrices that change a weight."""
    return {
        slot: adapter.matrices[weight] for slot, adapter in adapters.items() if weight in adapter.matrices
    }


def lora(y: Array, x: Array, adapters: Ints, slots: Mapping[int, LoraMatrices]) -> Array:
    """y [rows, N] of a product with x [rows, K], and for each row scale * (x a^T) b^T of its own adapter.

    `slots` has the adapters that change this product's weight. Rows without one keep their bits.
    """
    y = y.copy()
    for slot, pair in slots.items():
        rows = adapters == slot
        y[rows] += pair.scale * (x[rows] @ pair.a.T) @ pair.b.T
    return y


def packed_a(a: Array, number: str) -> Bytes:
    """[rank, K] as native/kernels/lora.hpp lays it out, flat bytes."""
    rank, inputs = a.shape
    padded = np.zeros((rank + rank % 2, -(-inputs // PANEL) * PANEL), np.float32)
    padded[:rank, :inputs] = a
    numbers = _numbers(padded, number)
    blocks = [numbers[first : first + BLOCK] for first in range(0, len(numbers), BLOCK)]
    streams = [block.reshape(len(block), -1, PANEL).transpose(1, 0, 2).reshape(-1) for block in blocks]
    return np.concatenate(streams).view(np.uint8)


def packed_b(b: Array, number: str) -> Bytes:
    """[N, rank] as native/kernels/lora.hpp lays it out, flat bytes."""
    outputs, rank = b.shape
    padded = np.zeros((-(-outputs // PANEL) * PANEL, rank + rank % 2), np.float32)
    padded[:outputs, :rank] = b
    pair = 2 if number == "bf16" else 1
    panels = _numbers(padded, number).reshape(-1, PANEL, padded.shape[1] // pair, pair)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3)).reshape(-1).view(np.uint8)


def _numbers(values: Array, number: str) -> NDArray[np.float32] | NDArray[np.uint16]:
    if number == "f32":
        return values
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # to nearest, ties to even
