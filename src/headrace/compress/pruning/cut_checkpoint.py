"""A checkpoint of which parts are left out, read as if it were stored so."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.ops.value import Ints
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.closeable import Closeable
from headrace.weights.quant_types.block_type import Floats
from headrace.weights.tensor_file import TensorInfo

Kept = tuple[tuple[int, Ints], ...]
"""Pairs of an axis and the entries of it that stay, ascending."""


class Cut(Struct, frozen=True, eq=False):
    """What is left of a checkpoint: its config, its tensors by their new names with those that are stored,
    and what is kept of each by the new name. `values` gives numbers in the place of those of a tensor."""

    config: dict[str, object]
    names: dict[str, str]
    kept: Mapping[str, Kept] = {}
    values: Mapping[str, Callable[[], Floats]] = {}


class CutCheckpoint(Closeable):
    """A `CheckpointReader` of a cut; it does not close what it reads."""

    def __init__(self, source: CheckpointReader, cut: Cut) -> None:
        self._source, self._cut = source, cut
        self._last: tuple[str, Floats] | None = None
        self.tensors: Mapping[str, TensorInfo] = {name: self._info(name) for name in cut.names}

    @property
    def config(self) -> dict[str, object]:
        """That of the cut."""
        return self._cut.config

    @property
    def generation_config(self) -> dict[str, object] | None:
        """The source's."""
        return self._source.generation_config

    @property
    def metadata(self) -> Mapping[str, object] | None:
        """The source's: tokenizer and template stay as they are."""
        return self._source.metadata

    @property
    def fingerprint(self) -> str:
        """Of the source and of what is left."""
        digest = hashlib.sha256(f"{self._source.fingerprint} {sorted(self._cut.names.items())}".encode())
        for name, kept in sorted(self._cut.kept.items()):
            for axis, entries in kept:
                digest.update(f"\n{name} {axis} ".encode() + entries.astype("<i4").tobytes())
        return digest.hexdigest()

    def info(self, name: str) -> TensorInfo:
        """The tensor as it will be, in float32."""
        return self.tensors[name] if name in self.tensors else self._source.info(name)

    def input_order(self, name: str) -> NDArray[np.int32] | None:
        """Inputs are in their own order: `float32` gives them so."""
        del name

    def float32(self, name: str) -> NDArray[np.float32]:
        """A copy of what is left of the tensor."""
        own = self._cut.values.get(name)
        values = self._source.float32(self._cut.names[name]) if own is None else own()
        for axis, entries in self._cut.kept.get(name, ()):
            values = np.take(values, entries, axis=axis)
        return np.ascontiguousarray(values, np.float32)

    def row_dtype(self, name: str) -> str:
        """What `read_rows` gives."""
        del name
        return "F32"

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows of the first dimension."""
        if self._last is None or self._last[0] != name:  # read block by block
            self._last = name, self.float32(name)
        rows = self._last[1][start_row : start_row + row_count]
        data = rows.reshape(-1).view(np.uint8)
        out.cast("B")[: data.nbytes] = data.data

    def close(self) -> None:
        self._last = None

    def _info(self, name: str) -> TensorInfo:
        info = self._source.info(self._cut.names[name])
        shape = list(info.shape)
        for axis, entries in self._cut.kept.get(name, ()):
            shape[axis] = len(entries)
        return replace(info, name=name, dtype="F32", shape=tuple(shape), nbytes=4 * math.prod(shape))


def uncut(source: CheckpointReader) -> Cut:
    """Everything stays."""
    return Cut(dict(source.config), {name: name for name in source.tensors})
