"""Writer of GGUF files (version 3, little endian): the header at once, then tensor after tensor."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.weights.gguf.reader import DEFAULT_ALIGNMENT, MAGIC, MAX_NAME_BYTES
from headrace.weights.quant_types import BY_NAME
from headrace.weights.tensor_output import TensorOutput

# Numbers of the value types.
_U32, _I32, _F32, _BOOL, _TEXT, _ARRAY, _U64 = 4, 5, 6, 7, 8, 9, 10
_OF_ARRAYS = {
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}


def write_gguf(
    file: BinaryIO,
    metadata: Mapping[str, object],
    tensors: Sequence[TensorOutput],
    progress: Callable[[int], None],
) -> None:
    """Writes a whole file from its start. Values of `metadata` are true or false, whole numbers, floats (kept
    in 32 bits), texts, NumPy vectors, lists of texts. `progress` gets the bytes written so far."""
    header = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _text(key) + _value(key, value)
    offset = 0
    for tensor in tensors:
        if len(tensor.name.encode()) >= MAX_NAME_BYTES:
            raise UnsupportedModel(
                f"the name {tensor.name!r} is longer than the {MAX_NAME_BYTES - 1} bytes that GGUF has for it"
            )
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        header += _text(tensor.name) + shape + struct.pack("<IQ", _type_id(tensor.type), offset)
        offset += tensor.nbytes + _padding(tensor.nbytes)
    file.write(header + bytes(_padding(len(header))))
    done = 0
    for tensor in tensors:
        written = 0
        for block in tensor.blocks():
            file.write(np.ascontiguousarray(block).data)
            written += block.nbytes
            progress(done + written)
        assert written == tensor.nbytes, f"{tensor.name}: {written} of {tensor.nbytes} bytes"
        file.write(bytes(_padding(written)))
        done += written


def _type_id(name: str) -> int:
    number = BY_NAME[name].id
    assert number is not None, f"{name} is no type of GGUF"
    return number


def _padding(nbytes: int) -> int:
    return -nbytes % DEFAULT_ALIGNMENT


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int() if -(2**31) <= value < 0:
            return struct.pack("<Ii", _I32, value)
        case int() if 0 <= value < 2**32:
            return struct.pack("<II", _U32, value)
        case int() if 0 <= value < 2**64:
            return struct.pack("<IQ", _U64, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _TEXT) + _text(value)
        case np.ndarray():
            array = cast("NDArray[np.generic]", value)
            kind = _OF_ARRAYS[array.dtype.str[1:]]
            return struct.pack("<IIQ", _ARRAY, kind, array.size) + array.tobytes()
        case list():
            texts = cast("list[object]", value)
            if all(isinstance(entry, str) for entry in texts):
                parts = b"".join(_text(str(entry)) for entry in texts)
                return struct.pack("<IIQ", _ARRAY, _TEXT, len(texts)) + parts
        case _:
            pass
    raise UnsupportedModel(f"the value of {key!r} ({value!r:.60}) cannot be written to a GGUF file")
