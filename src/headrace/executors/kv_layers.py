"""How keys and values of each layer are kept, where a calibration has found it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile
from headrace.ops.value import Array
from headrace.program.program import Program

KvType = Literal["f32", "bf16", "int8", "k8v4", "int4", "int3", "mixed"]
LayerType = Literal["f32", "bf16", "int8", "k8v4", "int4", "k4v3", "k3v4", "int3"]
KV_BITS: dict[LayerType, tuple[int, int]] = {
    "f32": (32, 32),
    "bf16": (16, 16),
    "int8": (8, 8),
    "k8v4": (8, 4),
    "int4": (4, 4),
    "k4v3": (4, 3),
    "k3v4": (3, 4),
    "int3": (3, 3),
}
_BY_BITS: dict[tuple[int, int], LayerType] = {bits: name for name, bits in KV_BITS.items() if bits[0] < 32}
_MAX_FACTOR = 2.0**20


class KvLayers(Struct, frozen=True):
    """Of each cache in the program's order: bits of keys and values (for the type `mixed`), and factors that
    keys are multiplied by before they become codes, and queries divided by, for each number of all heads.
    Either may be empty."""

    bits: tuple[tuple[int, int], ...] = ()
    balance: tuple[tuple[float, ...], ...] = ()

    def check(self, program: Program) -> None:
        """CorruptFile where they do not fit the program."""
        count = len(program.caches)
        if self.bits and (len(self.bits) != count or any(pair not in _BY_BITS for pair in self.bits)):
            known = ", ".join(str(list(pair)) for pair in _BY_BITS)
            raise CorruptFile(f"headrace.json: kv.bits must be {count} pairs out of {known}: calibrate again")
        if not self.balance:
            return
        widths = [int(cache.shape[1]) for cache in program.caches]
        if [len(row) for row in self.balance] != widths or not all(
            1 / _MAX_FACTOR <= factor <= _MAX_FACTOR for row in self.balance for factor in row
        ):
            raise CorruptFile(
                f"headrace.json: kv.balance must be {count} rows of positive numbers, one for each of a"
                " key's: calibrate again"
            )

    def factors(self, index: int) -> Array:
        """Those of keys, then of queries; empty for none."""
        if not self.balance:
            return np.zeros(0, np.float32)
        keys = np.array(self.balance[index], np.float32)
        return np.concatenate([keys, np.float32(1) / keys])


def has_3_bits(kv_type: KvType, kv: KvLayers | None) -> bool:
    """Whether any number is kept in 3 bits."""
    return kv_type == "int3" or (kv_type == "mixed" and kv is not None and any(3 in pair for pair in kv.bits))


def layer_types(program: Program, kv_type: KvType, kv: KvLayers | None) -> tuple[LayerType, ...]:
    """The type of each cache."""
    if kv_type == "mixed":
        assert kv is not None and kv.bits
        return tuple(_BY_BITS[pair] for pair in kv.bits)
    return (kv_type,) * len(program.caches)
