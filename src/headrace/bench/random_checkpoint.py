"""A checkpoint with random weights for any config, to measure a model's speed without downloading it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from headrace.errors import CorruptFile, UsageError
from headrace.models.registry import find_model
from headrace.program.program import Program
from headrace.program.record import record
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.closeable import Closeable
from headrace.weights.config_json import Config
from headrace.weights.tensor_file import TensorInfo

_NOISE_NUMBERS = 1 << 20
_DEVIATION = 0.02  # the usual initializer standard deviation
_DTYPE, _BYTES = "BF16", 2


class RandomCheckpoint(Closeable):
    """A `CheckpointReader` with random bfloat16 tensors for a config's model: norms near 1, the rest
    noise.

    The same config gives the same weights. Raises the model's errors for invalid config fields.
    """

    def __init__(self, config: Config) -> None:
        self.config: dict[str, object] = dict(config)
        self.generation_config: dict[str, object] | None = None
        self.metadata: Mapping[str, object] | None = None
        self.fingerprint = "random-" + hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
        shapes = stored_shapes(record(find_model(config).define))
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, _DTYPE, shape, _BYTES * prod(shape), Path(), 0)
            for name, shape in shapes.items()
        }
        draws = np.random.default_rng(0).standard_normal(_NOISE_NUMBERS, np.float32) * np.float32(_DEVIATION)
        self._noise: NDArray[np.uint16] = (draws.view(np.uint32) >> 16).astype(np.uint16)

    def info(self, name: str) -> TensorInfo:
        """Shape and type of a tensor."""
        if name not in self.tensors:
            raise CorruptFile(f"the config's model has no tensor {name!r}")
        return self.tensors[name]

    def input_order(self, name: str) -> NDArray[np.int32] | None:
        """None: columns are in natural order."""
        return None

    def row_dtype(self, name: str) -> str:
        """BF16."""
        return self.info(name).dtype

    def float32(self, name: str) -> NDArray[np.float32]:
        """A tensor in its own shape; vectors are near 1."""
        shape = self.info(name).shape
        numbers = np.empty(prod(shape), np.uint16)
        self._fill(name, 0, numbers)
        wide = (numbers.astype(np.uint32) << 16).view(np.float32).reshape(shape)
        return wide + np.float32(1) if len(shape) == 1 else wide

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        """Rows of the first dimension."""
        width = prod(self.info(name).shape[1:])
        numbers = np.frombuffer(out, np.uint16, count=row_count * width)
        self._fill(name, start_row * width, numbers)

    def _fill(self, name: str, start: int, out: NDArray[np.uint16]) -> None:
        """Numbers `start`.. of the tensor: repeated noise, with an offset that depends on the name."""
        first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") + start
        done = 0
        while done < len(out):
            place = (first + done) % _NOISE_NUMBERS
            count = min(len(out) - done, _NOISE_NUMBERS - place)
            out[done : done + count] = self._noise[place : place + count]
            done += count

    def close(self) -> None:
        """Nothing to close."""


def stored_shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """The tensors in a checkpoint of this program: whole tensors, not the slices that the program uses."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in program.weights.items():
        shape = tuple(int(size) for size in value.shape)
        if name in program.stacks:
            tensors = program.stacks[name]
            shapes |= {tensor: (shape[0] // len(tensors), *shape[1:]) for tensor in tensors}
        elif name in program.parts:
            tensor, part = program.parts[name]
            shapes[tensor] = part.stored_shapes(shape)[-1]
        elif name in program.derived:
            shapes |= dict(program.derived[name].tensors)
        else:
            shapes[name] = shape
    return shapes


def read_config_file(path: Path) -> dict[str, object]:
    """Read a config.json; UsageError if it is invalid."""
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a config.json: {error}", param="config") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds no JSON object: give a model's config.json", param="config")
    return config  # pyright: ignore[reportUnknownVariableType]


def no_tokenizer() -> Tokenizer:
    """Tokenizer for a model without vocabulary: every token is an empty text."""
    return Tokenizer(tokenizers.Tokenizer(models.WordLevel({"?": 0}, unk_token="?")))
