"""A GGUF model as a checkpoint: Hugging Face names and config, rows in their original order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile
from headrace.weights.block_types import BY_NAME, unreadable
from headrace.weights.gguf import GgufFile
from headrace.weights.gguf_config import (
    ROPE_FACTORS,
    architecture_of,
    checkpoint_name,
    config_of,
    generation_config_of,
    rope_with_factors,
)
from headrace.weights.gguf_split import open_parts
from headrace.weights.tensor_file import TensorInfo


class GgufCheckpoint:
    """Implements `Source`. A TensorInfo keeps the name that the tensor has in the file."""

    def __init__(self, path: Path) -> None:
        self._parts = open_parts(path)
        try:
            self._read(path.name)
        except BaseException:
            self.close()
            raise

    def _read(self, name: str) -> None:
        self.name = name
        self.metadata: Mapping[str, object] = self._parts[0].metadata
        architecture = architecture_of(self.metadata, name)
        self._files: dict[Path, GgufFile] = {part.path: part for part in self._parts}
        stored = {info.name: info for part in self._parts for info in part.tensors.values()}
        for info in stored.values():
            _check_readable(info)
        factors = stored.pop(ROPE_FACTORS, None)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {checkpoint_name(info.name, name): info for info in stored.values()}
        )
        self.config = config_of(self.metadata, architecture, self.tensors, name)
        self.generation_config = generation_config_of(self.metadata, name)
        head_dim = cast(int, self.config["head_dim"])
        if factors is not None:
            self._set_rope_factors(factors, head_dim)
        self._head_rows = head_dim if architecture.paired_rows else 0
        for tensor in filter(self._is_paired, self.tensors):
            _check_heads(self.tensors[tensor], head_dim)

    @property
    def fingerprint(self) -> str:
        """sha256 over header, size and time of each file."""
        digest = hashlib.sha256(b"gguf")
        for part in self._parts:
            size, mtime_ns = part.stamp
            digest.update(f"\n{part.path.name} {part.header_sha256} {size} {mtime_ns}".encode())
        return digest.hexdigest()

    def info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise CorruptFile(
                f"{self.name} has no tensor for {name!r} among its {len(self.tensors):,}: its weights do not "
                "belong to its metadata"
            )
        return self.tensors[name]

    def float32(self, name: str) -> NDArray[np.float32]:
        info = self.info(name)
        values = self._files[info.file].float32(info)
        return values[self._stored_rows(name, 0, info.shape[0])] if self._is_paired(name) else values

    def row_dtype(self, name: str) -> str:
        return self.info(name).dtype

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        info = self.info(name)
        if not self._is_paired(name):
            rows = self._bytes_of_rows(info, start_row, row_count)
        else:
            # Rows change places within their head: read whole heads and pick.
            first = start_row // self._head_rows * self._head_rows
            end = -(-(start_row + row_count) // self._head_rows) * self._head_rows
            heads = self._bytes_of_rows(info, first, end - first)
            rows = heads[self._stored_rows(name, start_row, row_count) - first]
        np.frombuffer(out, np.uint8)[: rows.size] = rows.reshape(-1)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _set_rope_factors(self, factors: TensorInfo, head_dim: int) -> None:
        if factors.shape != (head_dim // 2,):
            raise CorruptFile(
                f"{self.name}: {ROPE_FACTORS!r} has the shape {factors.shape}, one factor for two of the "
                f"{head_dim} entries of a head expected"
            )
        values = self._files[factors.file].float32(factors)
        rope = cast("dict[str, object]", self.config["rope_parameters"])
        self.config["rope_parameters"] = rope_with_factors(rope, values, self.name)

    def _bytes_of_rows(self, info: TensorInfo, start_row: int, row_count: int) -> NDArray[np.uint8]:
        """[row_count, bytes of a row] as stored."""
        row_bytes = info.nbytes // max(info.shape[0], 1)
        rows = np.empty((row_count, row_bytes), np.uint8)
        self._files[info.file].read_into(info, start_row * row_bytes, rows.reshape(-1).data)
        return rows

    def _is_paired(self, name: str) -> bool:
        return self._head_rows > 0 and name.rpartition(".")[0].endswith(
            ("self_attn.q_proj", "self_attn.k_proj")
        )

    def _stored_rows(self, name: str, start_row: int, row_count: int) -> NDArray[np.int64]:
        """Where rows of the original order are stored: row j of the first half of a head at 2j, of the second
        half at 2j + 1."""
        rows = np.arange(start_row, start_row + row_count)
        half = self._head_rows // 2
        head, within = np.divmod(rows, self._head_rows)
        return head * self._head_rows + within % half * 2 + within // half


def _check_readable(info: TensorInfo) -> None:
    kind = BY_NAME[info.dtype]
    if kind.dequantise is None:
        error = unreadable(kind)
        raise type(error)(f"{info.name}: {error.message}")


def _check_heads(info: TensorInfo, head_dim: int) -> None:
    """The rows of queries or keys make up whole heads, and a head whole pairs."""
    if not info.shape or info.shape[0] % head_dim or head_dim % 2:
        raise CorruptFile(
            f"{info.name} has the shape {info.shape}, an even {head_dim} rows for each head expected"
        )
