"""The tensors of a quantized checkpoint as they are stored, each checked against what its scheme expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile
from headrace.weights.config_json import Config
from headrace.weights.quant_types.block_type import Floats
from headrace.weights.quant_types.float_scales import E4M3
from headrace.weights.tensor_file import TensorInfo

Shape = tuple[int | None, ...]
"""Sizes; None stands for any of at least one."""

FLOATS = ("F32", "F16", "BF16", "F8_E4M3", "F8_E8M0")
# Of codes of one byte; an E8M0 is a power of two, or a NaN.
_TABLES = {"F8_E4M3": E4M3, "F8_E8M0": np.array([*(2.0**e for e in range(-127, 128)), np.nan], np.float32)}
_DTYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I8": "i1",
    "U8": "u1",
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
}


class RawTensors(Protocol):
    """What a checkpoint must offer below its quantization."""

    @property
    def config(self) -> Config: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read_bytes(self, name: str, start: int, out: memoryview) -> None:
        """Bytes of a tensor from `start` on into `out`, a flat view of bytes."""
        ...


class RawTensorReader:
    """Reads arrays of any element type that a scheme uses; nothing of them is trusted before `check`."""

    def __init__(self, raw: RawTensors) -> None:
        self.config = raw.config
        self.tensors = raw.tensors
        self._raw = raw

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def with_suffix(self, suffix: str) -> Iterator[str]:
        """The names that end so, without the suffix."""
        return (name.removesuffix(suffix) for name in self.tensors if name.endswith(suffix))

    def check(self, name: str, dtypes: tuple[str, ...], shape: Shape) -> TensorInfo:
        """The tensor, which must have one of the types and that shape, or CorruptFile."""
        info = self.tensors.get(name)
        wanted = f"{' or '.join(dtypes)} of shape {_text(shape)}"
        if info is None:
            raise CorruptFile(
                f"the checkpoint has no tensor {name!r}, which must be {wanted}: fetch it again"
            )
        fits = len(info.shape) == len(shape) and all(
            got == size if size is not None else got > 0 for got, size in zip(info.shape, shape, strict=True)
        )
        if info.dtype not in dtypes or not fits:
            raise CorruptFile(
                f"{info.file.name}: tensor {name!r} is {info.dtype} of shape {_text(info.shape)}, expected "
                f"{wanted}: the file is damaged or its quantization_config is another model's"
            )
        return info

    def rows(self, name: str, start: int, count: int) -> NDArray[Any]:
        """Rows of the first dimension, as stored; FP8 and BF16 as their bits."""
        info = self.tensors[name]
        result = np.empty((count, *info.shape[1:]), _DTYPES[info.dtype])
        row_bytes = info.nbytes // max(info.shape[0], 1)
        self._raw.read_bytes(name, start * row_bytes, result.reshape(-1).view(np.uint8).data)
        return result

    def columns(self, name: str, start: int, count: int) -> NDArray[Any]:
        """Columns of a matrix, [rows, count], as stored."""
        info = self.tensors[name]
        rows, width = info.shape
        result = np.empty((rows, count), _DTYPES[info.dtype])
        for row, out in enumerate(result):
            self._raw.read_bytes(name, (row * width + start) * result.itemsize, out.view(np.uint8).data)
        return result

    def whole(self, name: str) -> NDArray[Any]:
        """All of a tensor, as stored."""
        info = self.tensors[name]
        return self.rows(name, 0, info.shape[0]) if info.shape else self._scalar(name, info)

    def finite(self, name: str, values: NDArray[Any]) -> Floats:
        """Stored numbers of the tensor `name` as float32; CorruptFile where one is NaN or infinite."""
        dtype = self.tensors[name].dtype
        if dtype == "BF16":  # the upper half of a float32
            floats = (values.astype(np.uint32) << 16).view(np.float32)
        else:
            floats = _TABLES[dtype][values] if dtype in _TABLES else values.astype(np.float32)
        if not np.isfinite(floats).all():
            raise CorruptFile(
                f"tensor {name!r} holds {np.count_nonzero(~np.isfinite(floats)):,} numbers that are NaN or "
                "infinite, all must be finite: fetch the file again"
            )
        return floats

    def _scalar(self, name: str, info: TensorInfo) -> NDArray[Any]:
        result = np.empty(1, _DTYPES[info.dtype])
        self._raw.read_bytes(name, 0, result.view(np.uint8).data)
        return result.reshape(())


def _text(shape: Shape) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"
