"""Matrices in the rotated int4 and int8 of the loader, as tensors of a folder (quantized/rotated.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec import Struct

from headrace.weights import formats
from headrace.weights.formats.hadamard import GROUP, rotation_block
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quant_types.block_type import BlockType, Bytes, Floats
from headrace.weights.quantized.rotated import CODES, FORMAT, GROUPS, METHOD, SCALE
from headrace.weights.tensor_output import TensorOutput

QUANTIZATION_CONFIG: dict[str, object] = {"quant_method": METHOD, "format": FORMAT}


class RotatedRows(Struct, frozen=True):
    """Rows of `k` inputs, a multiple of 32, as bytes of the block types R4 (`format` int4) and R8 (int8)."""

    format: str
    k: int

    @property
    def kind(self) -> BlockType:
        """The block type."""
        return BY_NAME[f"R{4 if self.format == 'int4' else 8}_{rotation_block(self.k)}"]

    def encode(self, rows: Floats) -> Bytes:
        """Each number to the nearest, as loading does."""
        return formats.to_rows(self.format, formats.pack(self.format, rows), *rows.shape)

    def decode(self, data: Bytes) -> Floats:
        """The numbers that the bytes stand for."""
        return dequantize(self.kind, np.ascontiguousarray(data).reshape(-1)).reshape(len(data), self.k)

    def outputs(self, name: str, n: int, converted: Callable[[], Iterator[Bytes]]) -> list[TensorOutput]:
        """The tensors of a matrix whose rows' bytes `converted` gives, block by block."""
        stem, k = name.removesuffix("weight"), self.k
        groups, scales = list[Bytes](), list[Bytes]()  # filled while the codes are written, which is before

        def codes() -> Iterator[Bytes]:
            groups.clear()
            scales.clear()
            for data in converted():
                blocks = data.reshape(len(data), -1, self.kind.block_bytes)
                scales.append(np.ascontiguousarray(blocks[:, 0, :4]))
                rest = blocks[:, :, 4:].reshape(len(data), -1)
                if self.format == "int4":
                    parts = rest.reshape(len(data), k // GROUP, -1)
                    groups.append(np.ascontiguousarray(parts[:, :, :2]).reshape(len(data), -1))
                    rest = parts[:, :, 2:].reshape(len(data), -1)
                yield np.ascontiguousarray(rest)

        scale = TensorOutput(f"{stem}{SCALE}", "F32", (n,), 4 * n, (name,), lambda: iter(scales))
        if self.format == "int8":
            return [TensorOutput(f"{stem}{CODES}", "I8", (n, k), n * k, (name,), codes, "INT8"), scale]
        pairs, width = k // 2, 2 * (k // GROUP)
        return [
            TensorOutput(f"{stem}{CODES}", "U8", (n, pairs), n * pairs, (name,), codes),
            TensorOutput(f"{stem}{GROUPS}", "U8", (n, width), n * width, (name,), lambda: iter(groups)),
            scale,
        ]
