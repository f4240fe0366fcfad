"""HQQ, 8 to 1 bits (Badri and Shaji 2023, https://mobiusml.github.io/hqq_blog), as transformers stores it.

A layer [n, k] has `W_q`, `scale`, `zero`, and tensors of one number: `nbits`, `group_size`, `axis`; `shape`
is [n, k]. Codes form a matrix of groups: [n * k / group, group] with axis 1, [group, n * k / group] with axis
0, in either case of the weights in their own order. w = (code - zero) * scale, with floats of the group. Of
codes of 4, 2 and 1 bits the first half (quarter, eighth) of that matrix' rows takes the high bits of a byte,
and so on; 3 bits put ten parts into an int32 below two bits that are 0, the last part padded.
`view_as_float` says that these bytes are stored as floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config
from headrace.weights.quant_types import BY_NAME, HQQ
from headrace.weights.quant_types.block_type import Bytes
from headrace.weights.quantized.quantized_tensor import QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader

_FLOATS = ("F16", "BF16", "F32")
_INTS = ("I32", "I64", "U8")
_CODES = ("U8", "I32", *_FLOATS)
_MAX_NAME = 64  # of a packing
_GROUP_UNIT = 8  # as hqq itself takes them


class _Packing(Struct, frozen=True):
    """Fields of `bits` bits, the first from the top of `used` bits, in elements of `type`."""

    type: str
    bits: int
    used: int

    @property
    def parts(self) -> int:
        return self.used // self.bits


_PACKINGS = {
    "8bit_u8": _Packing("u1", 8, 8),
    "4bit_u8": _Packing("u1", 4, 8),
    "3bit_32": _Packing("<u4", 3, 30),
    "2bit_u8": _Packing("u1", 2, 8),
    "1bit_u8": _Packing("u1", 1, 8),
}
_OF_BITS = {
    8: "8bit_u8",
    6: "8bit_u8",
    5: "8bit_u8",
    4: "4bit_u8",
    3: "3bit_32",
    2: "2bit_u8",
    1.58: "2bit_u8",
    1: "1bit_u8",
}


def find(stored: RawTensorReader, config: Config) -> dict[str, QuantizedTensor]:
    """Every layer that has a `W_q`. UnsupportedModel for scales that are quantized too, and other widths."""
    del config  # says what was asked for; each layer says what it has
    return {f"{layer}.weight": _Hqq(stored, layer) for layer in stored.with_suffix(".W_q")}


class _Hqq(QuantizedTensor):
    def __init__(self, stored: RawTensorReader, layer: str) -> None:
        self._stored, self._layer = stored, layer
        self._refuse_extras()
        n, k = self._shape()
        group, axis = self._number("group_size"), self._number("axis")
        if axis not in (0, 1):
            raise CorruptFile(f"tensor '{layer}.axis' is {axis}, 0 or 1 expected: fetch the file again")
        if group % _GROUP_UNIT:
            raise UnsupportedModel(
                f"tensor '{layer}.group_size' is {group:,}: HQQ groups are supported in multiples of"
                f" {_GROUP_UNIT}"
            )
        if not 0 < group <= n * k or n * k % group:
            raise CorruptFile(
                f"tensor '{layer}.group_size' is {group:,}, which is no part of {n:,} x {k:,} weights: fetch"
                " the file again"
            )
        count = n * k // group
        self._rows, self._width = (count, group) if axis == 1 else (group, count)
        self._packing = self._read_packing()
        self._step = -(-self._rows // self._packing.parts)
        self._check_codes()
        of_groups = (count, 1) if axis == 1 else (1, count)
        for field in ("scale", "zero"):
            stored.check(f"{layer}.{field}", _FLOATS, of_groups)
        self._axis = axis
        super().__init__(stored, f"{layer}.weight", BY_NAME["F32"], (n, k), f"{layer}.W_q")
        self.info = replace(self.info, dtype=HQQ)

    def _refuse_extras(self) -> None:
        stored, layer = self._stored, self._layer
        for field in ("zero_scale", "scale_q", "zero_q"):
            if f"{layer}.{field}" in stored:
                raise UnsupportedModel(
                    f"tensor '{layer}.{field}': HQQ with quantized or offloaded scales and zeros is not"
                    " supported; the nearest that is: scales and zeros as floats (quant_scale and quant_zero"
                    " false)"
                )
        for field in ("quant_scale", "quant_zero"):
            if f"{layer}.{field}" in stored and self._number(field):
                raise UnsupportedModel(
                    f"tensor '{layer}.{field}' is true: HQQ with quantized scales or zeros is not supported;"
                    " the nearest that is: scales and zeros as floats"
                )
        if f"{layer}.channel_wise" in stored and not self._number("channel_wise"):
            raise UnsupportedModel(
                f"tensor '{layer}.channel_wise' is false: HQQ with one scale for a whole matrix is not"
                " supported; the nearest that is: groups"
            )

    def _shape(self) -> tuple[int, int]:
        name = f"{self._layer}.shape"
        self._stored.check(name, ("I64", "I32"), (2,))
        n, k = (int(size) for size in self._stored.whole(name))
        if n < 1 or k < 1:
            raise CorruptFile(f"tensor {name!r} is [{n}, {k}], sizes above 0 expected: fetch the file again")
        return n, k

    def _number(self, field: str) -> int:
        return int(self._value(field, _INTS))

    def _value(self, field: str, types: tuple[str, ...]) -> float:
        name = f"{self._layer}.{field}"
        info = self._stored.tensors.get(name)
        shape = (1,) if info is not None and info.shape == (1,) else ()
        self._stored.check(name, types, shape)
        return float(self._stored.whole(name).reshape(()))

    def _read_packing(self) -> _Packing:
        layer, bits = self._layer, round(self._value("nbits", (*_INTS, "F32")), 2)
        if bits not in _OF_BITS:
            known = ", ".join(f"{one:g}" for one in _OF_BITS)
            raise UnsupportedModel(f"tensor '{layer}.nbits' is {bits:g}: HQQ with {known} bits is supported")
        name, packing = f"{layer}.packing", _OF_BITS[bits]
        if name in self._stored:
            info = self._stored.check(name, ("U8",), (None,))
            said = bytes(self._stored.whole(name)) if info.shape[0] <= _MAX_NAME else b""
            if said != packing.encode():
                raise UnsupportedModel(
                    f"tensor {name!r} is {said!r}, {packing!r} is what {bits:g} bits are read from"
                )
        return _PACKINGS[packing]

    def _check_codes(self) -> None:
        """The bytes of `W_q` must be those of the packed matrix; `view_as_float` changes their type only."""
        name = f"{self._layer}.W_q"
        info = self._stored.check(name, _CODES, (None, None))
        nbytes = self._step * self._width * np.dtype(self._packing.type).itemsize
        uneven = self._packing.bits != 3 and self._rows % self._packing.parts
        if uneven or info.shape[0] != self._step or info.nbytes != nbytes:
            raise CorruptFile(
                f"{info.file.name}: tensor {name!r} is {info.dtype} of shape {list(info.shape)}, for"
                f" {self._rows:,} x {self._width:,} codes of {self._packing.bits} bits {self._step:,} rows"
                f" and {nbytes:,} bytes expected: the file is damaged"
            )

    def blocks(self, start_row: int, row_count: int) -> Bytes:
        k, width = self.info.shape[1], self._width
        first, end = start_row * k, (start_row + row_count) * k
        top, bottom = first // width, -(-end // width)
        codes = self._codes(top, bottom).astype(np.float32)
        rows = slice(top, bottom) if self._axis == 1 else slice(0, 1)
        scale, zero = (self._floats(field, rows) for field in ("scale", "zero"))
        weights = ((codes - zero) * scale).reshape(-1)[first - top * width : end - top * width]
        return np.ascontiguousarray(weights, "<f4").view(np.uint8).reshape(row_count, 4 * k)

    def _floats(self, field: str, rows: slice) -> NDArray[np.float32]:
        name = f"{self._layer}.{field}"
        return self._stored.finite(name, self._stored.rows(name, rows.start, rows.stop - rows.start))

    def _codes(self, top: int, bottom: int) -> NDArray[Any]:
        """Rows [top, bottom) of the matrix of codes."""
        packing, step = self._packing, self._step
        pieces: list[NDArray[Any]] = []
        for part in range(top // step, -(-bottom // step)):
            start, end = max(top - part * step, 0), min(bottom - part * step, step)
            raw = self._stored.rows(f"{self._layer}.W_q", start, end - start)
            words = raw.view(np.uint8).reshape(end - start, -1).view(packing.type)
            shift = packing.used - packing.bits * (part + 1)
            pieces.append((words >> words.dtype.type(shift)) & words.dtype.type((1 << packing.bits) - 1))
        return np.concatenate(pieces)
