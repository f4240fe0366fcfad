"""What the readers of weight files share: a tensor's place, and reading it by position."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from headrace.weights.closeable import Closeable
from headrace.weights.pread_file import PositionedFile

MAX_STACKED = 4096  # matrices in one tensor: experts or heads of a layer


class TensorInfo(Struct, frozen=True):
    """One tensor of a file; `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path
    offset: int


class TensorFile(Closeable):
    """An open file of tensors; a format's reader extends it. `stamp` is (size, mtime_ns) at opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = PositionedFile(path)
        self.stamp = self._file.stamp

    def close(self) -> None:
        self._file.close()

    def read_into(self, info: TensorInfo, start: int, out: memoryview) -> None:
        """Bytes [start, start + len(out)) of the tensor into `out`, a flat view of bytes.

        A file that became shorter raises CorruptFile.
        """
        if start < 0 or start + out.nbytes > info.nbytes:
            raise ValueError(f"bytes {start}..{start + out.nbytes} of {info.name}, which has {info.nbytes}")
        self._file.read_into(info.offset + start, out, f"tensor {info.name!r}")
