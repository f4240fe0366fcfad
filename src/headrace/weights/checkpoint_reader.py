"""What every kind of checkpoint offers to those who load it."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from headrace.weights.tensor_file import TensorInfo


class TensorReader(Protocol):
    """Tensors by the names of the architecture's Hugging Face checkpoint; nothing is read until asked for."""

    @property
    def fingerprint(self) -> str:
        """A digest of what decides the weights."""
        ...

    def info(self, name: str) -> TensorInfo:
        """The tensor of that name, or CorruptFile. Its `dtype` is the type that it is stored in."""
        ...

    def input_order(self, name: str) -> NDArray[np.int32] | None:
        """Which stored input each column of a matrix multiplies, where they were put in another order so that
        groups of one scale lie together; None where column i is input i."""
        ...

    def float32(self, name: str) -> NDArray[np.float32]:
        """A copy of the tensor in its own shape, widened or dequantized; UnsupportedModel for types that
        have no such reading."""
        ...

    def row_dtype(self, name: str) -> str:
        """Type of what `read_rows` gives, READABLE, SCALED or ROTATED in weights/quant_types: F32, Q4_K.
        UnsupportedModel as for float32."""
        ...

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows of the first dimension as row_dtype, into the start of `out`, a flat view of bytes.

        Raises CorruptFile where the file was cut short after it was opened.
        """
        ...


class CheckpointReader(TensorReader, Protocol):
    """An open checkpoint, whatever its files are. The fields of `config` are those of the Hugging Face
    checkpoint of the architecture."""

    @property
    def config(self) -> dict[str, object]:
        """What a config.json of this model says."""
        ...

    @property
    def generation_config(self) -> dict[str, object] | None:
        """What a generation_config.json says, None where there is none."""
        ...

    @property
    def metadata(self) -> Mapping[str, object] | None:
        """What a single file says of its tokenizer and chat template; None for a folder, which has files."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
