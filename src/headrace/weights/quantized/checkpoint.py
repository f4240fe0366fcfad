"""A quantized checkpoint as a `CheckpointReader`: plain names, rows as blocks."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.closeable import Closeable
from headrace.weights.config_json import Config, find
from headrace.weights.quant_types import dequantize
from headrace.weights.quantized import (
    auto_round,
    awq,
    compressed_tensors,
    fp8,
    gptq,
    hqq,
    mxfp4,
    nvfp4,
    rotated,
)
from headrace.weights.quantized.quantized_tensor import Ints, QuantizedTensor
from headrace.weights.quantized.raw_tensors import RawTensorReader, RawTensors
from headrace.weights.tensor_file import TensorInfo

_BLOCK_BYTES = 16 << 20  # of float32 rows in memory at once
_LOG = logging.getLogger(__name__)
_SCHEMES: dict[str, Callable[[RawTensorReader, Config], dict[str, QuantizedTensor]]] = {
    "gptq": gptq.find,
    "awq": awq.find,
    "auto-round": auto_round.find,
    "fp8": fp8.find,
    "fbgemm_fp8": fp8.find,
    "compressed-tensors": compressed_tensors.find,
    "hqq": hqq.find,
    "mxfp4": mxfp4.find,
    "modelopt": nvfp4.find,
    rotated.METHOD: rotated.find,
}
_SETTINGS = ("quantization_config", "compression_config")


class RawSource(CheckpointReader, RawTensors, Protocol):
    """A checkpoint whose tensors can be read as they are stored."""


def quantization_of(config: Config) -> Config | None:
    """What config.json says of the weights' quantization, None where they are plain."""
    for field in _SETTINGS:
        settings = find(config, field)
        if isinstance(settings, dict):
            return cast(Config, settings)
        if settings is not None:
            raise CorruptFile(f"config.json has {field!r} = {settings!r:.80}, an object expected: correct it")
    return None


class QuantizedCheckpoint(Closeable):
    """Layers that the scheme quantizes by their plain names, the others as they are stored."""

    metadata: None = None

    def __init__(self, raw: RawSource, settings: Config) -> None:
        self._raw = raw
        self.config = raw.config
        self.generation_config = raw.generation_config
        stored = RawTensorReader(raw)
        method = settings.get("quant_method")
        self._quantized = _scheme(method)(stored, settings)
        _tell_ignored(settings, stored)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: info for name, info in raw.tensors.items() if not self._hides(name)}
            | {name: tensor.info for name, tensor in self._quantized.items()}
        )

    @property
    def fingerprint(self) -> str:
        return self._raw.fingerprint

    def info(self, name: str) -> TensorInfo:
        tensor = self._quantized.get(name)
        return self._raw.info(name) if tensor is None else tensor.info

    def input_order(self, name: str) -> Ints | None:
        tensor = self._quantized.get(name)
        return None if tensor is None else tensor.order

    def float32(self, name: str) -> NDArray[np.float32]:
        tensor = self._quantized.get(name)
        if tensor is None:
            return self._raw.float32(name)
        rows, inputs = tensor.info.shape
        step = max(_BLOCK_BYTES // (4 * inputs), 1)
        result = np.empty((rows, inputs), np.float32)
        for start in range(0, rows, step):
            blocks = tensor.blocks(start, min(step, rows - start))
            result[start : start + step] = dequantize(tensor.type, blocks.reshape(-1)).reshape(-1, inputs)
        return result

    def row_dtype(self, name: str) -> str:
        return self._quantized[name].type.name if name in self._quantized else self._raw.row_dtype(name)

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        tensor = self._quantized.get(name)
        if tensor is None:
            self._raw.read_rows(name, start_row, row_count, out)
            return
        rows = tensor.blocks(start_row, row_count).reshape(-1)
        np.frombuffer(out, np.uint8)[: rows.size] = rows

    def close(self) -> None:
        self._raw.close()

    def _hides(self, name: str) -> bool:
        """Whether a stored tensor is part of a quantized one."""
        layer, _, field = name.rpartition(".")
        packed = name.removesuffix("_blocks").removesuffix("_scales")
        return (f"{layer}.weight" in self._quantized and field != "bias") or (
            packed != name and packed in self._quantized
        )


def _scheme(method: object) -> Callable[[RawTensorReader, Config], dict[str, QuantizedTensor]]:
    if isinstance(method, str) and method in _SCHEMES:
        return _SCHEMES[method]
    nearest = difflib.get_close_matches(str(method)[:60], _SCHEMES, 1, 0.0)[0]
    raise UnsupportedModel(
        f"config.json has quant_method {str(method)[:60]!r}, which is not supported; the nearest that is: "
        f"{nearest!r}; all: {', '.join(_SCHEMES)}"
    )


def _tell_ignored(settings: Config, stored: RawTensorReader) -> None:
    """Settings that change what other programs compute, and no weight."""
    groups = settings.get("config_groups")
    activations = any(
        isinstance(group, dict) and cast(Config, group).get("input_activations") is not None
        for group in (cast(Config, groups).values() if isinstance(groups, dict) else ())
    )
    if activations or settings.get("activation_scheme") or any(stored.with_suffix(".input_scale")):
        _LOG.info("the checkpoint's quantization of activations is not used: products follow --quantization")
    if settings.get("kv_cache_scheme") is not None or settings.get("kv_cache_quant_algo") is not None:
        _LOG.info("the checkpoint's quantization of keys and values is not used: see --kv-cache-dtype")
