"""Writer of safetensors files: the header at once, then tensor after tensor."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO

import numpy as np

from headrace.weights.tensor_output import TensorOutput


def write_safetensors(
    file: BinaryIO, tensors: Sequence[TensorOutput], progress: Callable[[int], None]
) -> None:
    """Writes a whole file from its start; `progress` gets the bytes written so far."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.type,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors begin at a multiple of 8
    file.write(struct.pack("<Q", len(text)) + text)
    done = 0
    for tensor in tensors:
        start = done
        for block in tensor.blocks():
            file.write(np.ascontiguousarray(block).data)
            done += block.nbytes
            progress(done)
        assert done - start == tensor.nbytes, f"{tensor.name}: {done - start} of {tensor.nbytes} bytes"
