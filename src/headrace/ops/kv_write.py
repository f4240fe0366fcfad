"""Store this step's keys and values in their slots."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ops.op import op
from headrace.ops.value import Array, Ints


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of one layer, each [slots, kv_heads * head_dim]; slot = page * page size + offset."""

    k: Array
    v: Array


@op("T J, T J, T, S J ->", tolerance=0.0, writes=3)
def kv_write(k: Array, v: Array, slots: Ints, cache: KvCache) -> None:
    cache.k[slots] = k
    cache.v[slots] = v
