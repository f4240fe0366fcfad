"""What a checkpoint holds, by class of tensor and type."""

from __future__ import annotations

import math

from msgspec import Struct

from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.tensor_roles import class_of


class StoredClass(Struct, frozen=True):
    """The tensors of one class that are stored as one type."""

    kind: str
    type: str
    tensors: int
    parameters: int
    bytes: int


def stored_classes(checkpoint: CheckpointReader) -> tuple[StoredClass, ...]:
    """What a checkpoint holds; only headers are read."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for name, info in checkpoint.tensors.items():
        key = class_of(name, len(info.shape)), info.dtype
        groups.setdefault(key, []).append((math.prod(info.shape), info.nbytes))
    return tuple(
        StoredClass(kind, type, len(sizes), sum(n for n, _ in sizes), sum(nbytes for _, nbytes in sizes))
        for (kind, type), sizes in sorted(groups.items())
    )
