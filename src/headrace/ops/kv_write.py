"""Write this step's keys and values to their cache slots."""

from __future__ import annotations

from msgspec import Struct

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


class KvCache(Struct, frozen=True):
    """Keys and values of one layer, each [slots, kv_heads * head_dim]; slot = page * page size + offset.

    If values have shape [slots, 0], they are the first entries of the keys.
    """

    k: Array
    v: Array


@op("T J, T V?, T, S J V ->", tolerance=0.0, writes=3)
def kv_write(k: Array, v: Array | None, slots: Ints, cache: KvCache) -> None:
    cache.k[slots] = k
    if v is not None:
        cache.v[slots] = v
