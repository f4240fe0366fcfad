"""The weights of a program as native code has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from headrace import _native
from headrace.loading.options import EngineOptions
from headrace.ops.value import Array
from headrace.program.program import Program
from headrace.weights.checkpoint_reader import TensorReader
from headrace.weights.packing.packed_cache import CacheTroubles
from headrace.weights.packing.packed_weights import PackedWeight, WeightSpec, load_packed
from headrace.weights.tensor_output import finite

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while weights are packed."""


class PackedWeights(Struct, frozen=True):
    """A program's weights by name: packed matrices, and as float32 what is not packed."""

    matrices: Mapping[str, PackedWeight]
    floats: Mapping[str, Array]


def native_weights(
    checkpoint: TensorReader,
    program: Program,
    wanted: Sequence[WeightSpec],
    options: EngineOptions,
    pool: _native.Pool,
    progress: Progress | None = None,
    troubles: CacheTroubles | None = None,
) -> PackedWeights:
    """Packed, or read from the cache; `troubles` counts what went wrong with that."""
    matrices = load_packed(
        checkpoint, wanted, pool, cache=options.cache_dir, progress=progress, troubles=troubles
    )
    vectors = {
        name: finite(checkpoint.float32(name), name)
        for name, value in program.weights.items()
        if len(value.shape) != 2
    }
    return PackedWeights(matrices, vectors)
