"""A GGUF model as a checkpoint: Hugging Face names and config, rows in their original order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile
from headrace.weights.closeable import Closeable
from headrace.weights.gguf.config_keys import config_of, generation_config_of, predicting_blocks
from headrace.weights.gguf.families import architecture_of
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.reader import GgufFile
from headrace.weights.gguf.rope_keys import (
    ATTENTION_FACTOR,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    rope_with_factors,
)
from headrace.weights.gguf.split_files import open_parts
from headrace.weights.gguf.tensor_names import block_of, named_tensors
from headrace.weights.quant_types import BY_NAME, WITHOUT_KERNEL, dequantize, unreadable
from headrace.weights.row_order import gather_rows
from headrace.weights.tensor_file import TensorInfo


class GgufCheckpoint(Closeable):
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
        self._architecture = architecture_of(self.metadata, name)
        self._files: dict[Path, GgufFile] = {part.path: part for part in self._parts}
        predicting = predicting_blocks(MetadataKeys(self.metadata, self._architecture.name, name))
        stored = {
            info.name: info
            for part in self._parts
            for info in part.tensors.values()
            if block_of(info.name) not in predicting
        }
        for info in stored.values():
            _check_readable(info)
        factors = {
            name: stored.pop(name) for name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS) if name in stored
        }
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            dict(entry for info in stored.values() for entry in named_tensors(info, self._architecture, name))
        )
        self.config = config_of(self.metadata, self._architecture, self.tensors, name)
        self.generation_config = generation_config_of(self.metadata, name)
        self._head_dim = cast(int, self.config.get("head_dim", 0))
        if factors:
            self._set_rope_factors(factors)
        for tensor, info in self.tensors.items():
            order = self._architecture.order_of(tensor)
            if order is not None and not order.divides(info.shape[0] if info.shape else 1, self._head_dim):
                raise CorruptFile(
                    f"{info.name} has the shape {info.shape}, an even {self._head_dim} "
                    "rows for each head expected"
                )

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

    def input_order(self, name: str) -> None:
        return None

    def float32(self, name: str) -> NDArray[np.float32]:
        info = self.info(name)
        values = self._files[info.file].float32(info)
        order, change = self._architecture.order_of(name), self._architecture.change_of(name)
        if order is not None:
            values = values[order.stored(np.arange(info.shape[0]), info.shape[0], self._head_dim)]
        return values if change is None else change.restore(values)

    def row_dtype(self, name: str) -> str:
        dtype = self.info(name).dtype
        return "F32" if dtype in WITHOUT_KERNEL else dtype

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        info = self.info(name)
        order = self._architecture.order_of(name)
        if order is None:
            rows = self._bytes_of_rows(info, start_row, row_count)
        else:
            wanted = np.arange(start_row, start_row + row_count)
            stored = order.stored(wanted, info.shape[0], self._head_dim)
            rows = gather_rows(lambda start, count: self._bytes_of_rows(info, start, count), stored)
        if info.dtype in WITHOUT_KERNEL:
            rows = dequantize(BY_NAME[info.dtype], rows.reshape(-1)).view(np.uint8)
        np.frombuffer(out, np.uint8)[: rows.size] = rows.reshape(-1)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _set_rope_factors(self, factors: Mapping[str, TensorInfo]) -> None:
        rotary_dim = int(self._head_dim * cast(float, self.config.get("partial_rotary_factor", 1.0)))
        values: dict[str, NDArray[np.float32]] = {}
        for name, info in factors.items():
            if info.shape != (rotary_dim // 2,):
                raise CorruptFile(
                    f"{self.name}: {name!r} has the shape {info.shape}, one factor for two of the "
                    f"{rotary_dim} entries of a head that rotate expected"
                )
            values[name] = self._files[info.file].float32(info)
        attention = MetadataKeys(self.metadata, self._architecture.name, self.name).number(
            ATTENTION_FACTOR, 1.0
        )
        self.config["rope_parameters"] = rope_with_factors(self.config, values, attention, self.name)

    def _bytes_of_rows(self, info: TensorInfo, start_row: int, row_count: int) -> NDArray[np.uint8]:
        """[row_count, bytes of a row] as stored."""
        row_bytes = info.nbytes // max(info.shape[0], 1)
        rows = np.empty((row_count, row_bytes), np.uint8)
        self._files[info.file].read_into(info, start_row * row_bytes, rows.reshape(-1).data)
        return rows


def _check_readable(info: TensorInfo) -> None:
    kind = BY_NAME[info.dtype]
    if kind.dequantize is None:
        error = unreadable(kind)
        raise type(error)(f"{info.name}: {error.message}")
