"""Tensors of a head that NumPy computes: read from the checkpoint's file by name and shape, and checked."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.safetensors.reader import SafetensorsFile

Array = NDArray[np.float32]
TENSORS = "model.safetensors"
_SHOWN = 3


class AffineLayer(Struct, frozen=True, eq=False):
    """`x @ weight + bias`: weight [inputs, outputs], bias [outputs]."""

    weight: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        """Of rows [n, inputs] the outputs [n, outputs]."""
        return x @ self.weight + self.bias


class Mlp(Struct, frozen=True, eq=False):
    """A layer, a relu, a second layer."""

    first: AffineLayer
    second: AffineLayer

    def __call__(self, x: Array) -> Array:
        """Of rows [n, inputs] the outputs [n, outputs]."""
        return self.second(np.maximum(self.first(x), 0))


class SpanScorer(Struct, frozen=True, eq=False):
    """What becomes of a word as a start and as an end of a span, and of both together."""

    start: Mlp
    end: Mlp
    out: Mlp


class HeadReader:
    """Tensors by name and shape; knows which were read. `config` is the file that says the shapes."""

    def __init__(self, file: SafetensorsFile, name: str, config: str) -> None:
        self._file, self._name, self._config = file, name, config
        self._read: set[str] = set()

    def tensor(self, name: str, *shape: int) -> Array:
        """A tensor in float32. Raises CorruptFile where it is missing, of another shape, or not finite."""
        info = self._file.tensors.get(name)
        if info is None:
            raise CorruptFile(f"{TENSORS} of {self._name} has no tensor {name!r}: fetch it again")
        if tuple(info.shape) != shape:
            raise CorruptFile(
                f"{TENSORS} of {self._name}: {name!r} has the shape {list(info.shape)}, by {self._config} it"
                f" is {list(shape)}: correct the file"
            )
        self._read.add(name)
        found = self._file.float32(info)
        if not np.isfinite(found).all():
            raise CorruptFile(
                f"{TENSORS} of {self._name}: {name!r} holds numbers that are not finite: fetch it again"
            )
        return found

    def layer(self, name: str, inputs: int, outputs: int) -> AffineLayer:
        """A layer whose tensors are `name`.weight and `name`.bias."""
        return self.affine(f"{name}.weight", f"{name}.bias", inputs, outputs)

    def affine(self, weight: str, bias: str, inputs: int, outputs: int) -> AffineLayer:
        """A layer by the names of its two tensors; torch has the weight as [outputs, inputs]."""
        matrix = self.tensor(weight, outputs, inputs)
        return AffineLayer(np.ascontiguousarray(matrix.T), self.tensor(bias, outputs))

    def mlp(self, name: str, inputs: int, inner: int, outputs: int, *, last: int = 3) -> Mlp:
        """As torch names the modules of a sequence; the second layer is module `last`: 3 with a dropout
        between the two, 2 without."""
        return Mlp(self.layer(f"{name}.0", inputs, inner), self.layer(f"{name}.{last}", inner, outputs))

    def spans(self, name: str, n: int) -> SpanScorer:
        """The layers of GLiNER's span mode markerV0."""
        return SpanScorer(
            start=self.mlp(f"{name}.project_start", n, 4 * n, n),
            end=self.mlp(f"{name}.project_end", n, 4 * n, n),
            out=self.mlp(f"{name}.out_project", 2 * n, 4 * n, n),
        )

    def check_all_read(self, encoder: str, kind: str) -> None:
        """UnsupportedModel, by name, for tensors that neither were read nor are the encoder's."""
        others = (name for name in self._file.tensors if not name.startswith(encoder))
        unread = sorted(name for name in others if name not in self._read)
        if unread:
            more = f" and {len(unread) - _SHOWN:,} more" if len(unread) > _SHOWN else ""
            raise UnsupportedModel(
                f"{TENSORS} of {self._name} holds tensors that this kind of {kind} does not have:"
                f" {', '.join(repr(name[:80]) for name in unread[:_SHOWN])}{more}: without them it would"
                " compute something else"
            )
