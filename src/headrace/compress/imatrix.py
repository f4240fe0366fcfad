"""Importance matrices of llama.cpp: how large each input of each matrix is on a text.

A GGUF file (tools/imatrix of llama.cpp): `general.type` imatrix, and for each tensor NAME float32 vectors
NAME.in_sum2, sums of squares of its inputs ([experts, inputs] for a stack), and NAME.counts, how many rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UsageError
from headrace.weights.gguf.reader import GgufFile
from headrace.weights.gguf.writer import write_gguf
from headrace.weights.quant_types.block_type import Bytes, Floats
from headrace.weights.tensor_output import TensorOutput

SUMS, COUNTS = ".in_sum2", ".counts"
Vector = NDArray[np.float64]


def read_imatrix(path: Path) -> dict[str, Floats]:
    """Mean squares of inputs by the matrix' name in GGUF, [inputs] or [experts, inputs]. CorruptFile where
    the file is none, or has numbers that cannot be; UsageError for the older format."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", param="imatrix") from None
    if magic != b"GGUF":
        raise UsageError(
            f"{path} is no GGUF file: convert an imatrix.dat with llama-imatrix --output-format gguf",
            param="imatrix",
        )
    file = GgufFile(path)
    try:
        found = {name.removesuffix(SUMS): _means(file, name) for name in file.tensors if name.endswith(SUMS)}
    finally:
        file.close()
    if not found:
        raise CorruptFile(f"{path} holds no importance matrix: make one with llama-imatrix")
    return found


def _means(file: GgufFile, name: str) -> Floats:
    counts_name = name.removesuffix(SUMS) + COUNTS
    if counts_name not in file.tensors:
        raise CorruptFile(f"{file.path.name} has {name!r} without {counts_name!r}: make it anew")
    sums, counts = (file.float32(file.tensors[one]) for one in (name, counts_name))
    if not (np.isfinite(sums).all() and np.isfinite(counts).all()) or (sums < 0).any() or (counts < 0).any():
        raise CorruptFile(f"{file.path.name}: {name!r} has numbers that are no sums of squares: make it anew")
    counts = counts.reshape(-1, 1) if sums.ndim > 1 else counts.reshape(-1)[:1]
    if sums.ndim > 1 and len(counts) != len(sums):
        raise CorruptFile(f"{file.path.name}: {counts_name!r} does not fit {name!r}: make it anew")
    return (sums / np.maximum(counts, 1)).astype(np.float32)


def write_imatrix(path: Path, sums: Mapping[str, Vector], rows: int, source: str, chunk: int) -> None:
    """Of matrices by their names in GGUF; `rows` inputs of `chunk` tokens a window. Whole or not at all."""
    outputs: list[TensorOutput] = []
    for name, values in sums.items():
        outputs.append(_vector(name + SUMS, values.astype(np.float32)))
        outputs.append(_vector(name + COUNTS, np.array([rows], np.float32)))
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": [source],
        "imatrix.chunk_count": rows // chunk,
        "imatrix.chunk_size": chunk,
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("xb") as file:
            write_gguf(file, metadata, outputs, lambda done: None)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _vector(name: str, values: Floats) -> TensorOutput:
    def blocks() -> Iterator[Bytes]:
        yield values.view(np.uint8)

    return TensorOutput(name, "F32", values.shape, values.nbytes, (), blocks)
