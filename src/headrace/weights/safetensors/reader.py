"""Reader of safetensors files that survives hostile ones.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, a JSON header, one
byte buffer that the tensors cover without gap or overlap).

The file is read by position and never mapped, see positioned_file.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights import strict_json
from headrace.weights.tensor_file import TensorFile, TensorInfo

# Room for 40,000 tensors in one file; the largest public checkpoints, in shards, have 1,000 in each.
MAX_HEADER_BYTES = 4 << 20
MAX_METADATA_BYTES = 1 << 20  # of the header; as Python objects they take 30 times as much
READABLE = {"F32": 4, "F16": 2, "BF16": 2}  # bytes per element
# Every element type that the format defines, in bits.
_BITS = {
    name: bits
    for bits, names in {
        64: "F64 C64 I64 U64",
        32: "F32 I32 U32",
        16: "F16 BF16 I16 U16",
        8: "I8 U8 BOOL F8_E5M2 F8_E4M3 F8_E8M0 F8_E5M2FNUZ F8_E4M3FNUZ",
        6: "F6_E2M3 F6_E3M2",
        4: "F4",
    }.items()
    for name in names.split()
}
_BLOCK_BYTES = 8 << 20

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    # numpy's limit; also keeps the product of a hostile shape short
    shape: Annotated[list[_Size], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]


_ENTRY = msgspec.json.Decoder(_Entry)
_METADATA = msgspec.json.Decoder(dict[str, str] | None)
_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SafetensorsFile(TensorFile):
    """An open file. Every violation of the format raises CorruptFile, at once and before any tensor is
    read; `header_sha256` and `stamp` (size, mtime_ns) identify the content."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            header = self._read_header(self._file.size)
            self.header_sha256 = hashlib.sha256(header).hexdigest()
            self.tensors = _tensors(path, header, self._file.size)
        except BaseException:
            self.close()
            raise

    def float32(self, info: TensorInfo) -> NDArray[np.float32]:
        """A copy of the tensor, widened exactly. Raises UnsupportedModel for other element types."""
        item = element_bytes(info)
        result = np.empty(info.shape, np.float32)
        flat = result.reshape(-1)
        block = np.empty(min(info.nbytes, _BLOCK_BYTES), np.uint8)
        for start in range(0, info.nbytes, _BLOCK_BYTES):
            part = block[: min(_BLOCK_BYTES, info.nbytes - start)]
            self.read_into(info, start, part.data)
            flat[start // item : (start + part.size) // item] = _widened(part, info.dtype)
        return result

    def _read_header(self, size: int) -> bytes:
        name = self.path.name
        if size < 8:
            raise CorruptFile(f"{name} has {size} bytes; a safetensors file has at least 8: fetch it again")
        prefix = bytearray(8)
        self._file.read_into(0, memoryview(prefix), "the header length")
        length = int.from_bytes(prefix, "little")
        if length > size - 8:
            raise CorruptFile(
                f"{name} announces a header of {length:,} bytes but has {size - 8:,} after the first 8: "
                "the file is cut short or is not safetensors; fetch it again"
            )
        if length > MAX_HEADER_BYTES:
            raise CorruptFile(
                f"{name} has a header of {length:,} bytes, the limit is {MAX_HEADER_BYTES:,}: "
                "save the checkpoint in several files"
            )
        header = bytearray(length)
        self._file.read_into(8, memoryview(header), "the header")
        if header[0:1] != bytearray(b"{"):
            raise CorruptFile(f"{name} has no '{{' at the start of its header: fetch the file again")
        return bytes(header)


def element_bytes(info: TensorInfo) -> int:
    """Bytes of one element of a readable tensor. Raises UnsupportedModel for other element types."""
    if info.dtype not in READABLE:
        raise UnsupportedModel(
            f"tensor {info.name!r} is stored as {info.dtype}; this version reads {', '.join(READABLE)}: "
            "use an unquantized checkpoint of the model"
        )
    return READABLE[info.dtype]


def _widened(part: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    if dtype == "BF16":  # the upper half of a float32
        return (part.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return part.view("<f4" if dtype == "F32" else "<f2").astype(np.float32)


def _tensors(path: Path, header: bytes, size: int) -> dict[str, TensorInfo]:
    where = f"the header of {path.name}"
    entries = strict_json.decode(_HEADER, header, where)
    raw_metadata = entries.pop("__metadata__", None)
    metadata_keys = 0
    if raw_metadata is not None:
        if len(bytes(raw_metadata)) > MAX_METADATA_BYTES:
            raise CorruptFile(
                f"__metadata__ of {path.name} has more than {MAX_METADATA_BYTES:,} bytes: shorten it"
            )
        metadata = strict_json.decode(_METADATA, raw_metadata, f"__metadata__ of {path.name}")
        metadata_keys = 1 + len(metadata or ())
    data_start = 8 + len(header)
    found = [_tensor(path, name, raw, data_start, size - data_start) for name, raw in entries.items()]
    # a name and the three fields of each
    strict_json.refuse_duplicates(header, 4 * len(found) + metadata_keys, where)
    _check_cover(path, found, data_start, size)
    return {info.name: info for info in found}


def _tensor(path: Path, name: str, raw: msgspec.Raw, data_start: int, data_bytes: int) -> TensorInfo:
    where = f"{path.name}: tensor {name[:200]!r}"
    entry = strict_json.decode(_ENTRY, raw, where)
    bits = _BITS.get(entry.dtype)
    if bits is None:
        raise CorruptFile(f"{where} has the unknown element type {entry.dtype[:40]!r}: fetch the file again")
    begin, end = entry.data_offsets
    if not begin <= end <= data_bytes:
        raise CorruptFile(
            f"{where} lies at bytes {begin:,} to {end:,} of {data_bytes:,} bytes of data: "
            "the file is cut short or damaged; fetch it again"
        )
    for dimension in entry.shape:
        bits *= dimension  # Python's integers do not overflow
    if bits != 8 * (end - begin):
        raise CorruptFile(
            f"{where} of shape {entry.shape} and type {entry.dtype} needs {min(bits, 2**66) // 8:,} bytes, "
            f"its offsets give {end - begin:,}: the file is damaged; fetch it again"
        )
    return TensorInfo(name, entry.dtype, tuple(entry.shape), end - begin, path, data_start + begin)


def _check_cover(path: Path, found: list[TensorInfo], data_start: int, size: int) -> None:
    """The tensors cover the data from first to last byte, each byte once."""
    position = data_start
    for info in sorted(found, key=lambda info: (info.offset, info.nbytes)):
        if info.offset != position:
            fault = (
                "overlaps the tensor before it by" if info.offset < position else "leaves a gap before it of"
            )
            raise CorruptFile(
                f"{path.name}: tensor {info.name[:200]!r} {fault} {abs(info.offset - position):,} bytes: "
                "the file is damaged; fetch it again"
            )
        position += info.nbytes
    if position != size:
        raise CorruptFile(
            f"{path.name}: {size - position:,} bytes after the last tensor belong to none: fetch it again"
        )
