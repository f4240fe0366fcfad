"""A model of llama2.c (one .bin file) as a checkpoint: Llama with its Hugging Face names and config.

Formats (export.py of github.com/karpathy/llama2.c), all little endian: legacy (seven int32, float32 weights,
with tables of the rotation), version 1 ("ak42", norms first, no tables), version 2 (the matrices in int8
with a float32 scale for each group of inputs).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.llama2c_tokenizer import tokenizer_metadata
from headrace.weights.quant_types import BY_NAME, dequantize
from headrace.weights.quantized.encode import byte_blocks
from headrace.weights.row_order import RowOrder, gather_rows
from headrace.weights.tensor_file import TensorFile, TensorInfo

_MAGIC = 0x616B3432
_VERSIONED_BYTES = 256
_FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_EMBED, _HEAD, _NORM = "model.embed_tokens", "lm_head", "model.norm"
_LAYER_NAMES = {
    "att": "input_layernorm",
    "ffn": "post_attention_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj",
    "w2": "mlp.down_proj",
    "w3": "mlp.up_proj",
}


class _Header(Struct, frozen=True):
    """`group` inputs share a scale in version 2; version 0 is the legacy format."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    version: int
    shared: bool
    group: int

    def shape(self, part: str) -> tuple[int, ...]:
        """Of one layer's part, or of the others."""
        kv = self.dim // self.heads * self.kv_heads
        rows = {
            "wq": self.dim,
            "wk": kv,
            "wv": kv,
            "wo": self.dim,
            "w1": self.hidden,
            "w2": self.dim,
            "w3": self.hidden,
            _EMBED: self.vocabulary,
            _HEAD: self.vocabulary,
        }
        if part not in rows:
            return (self.dim,)
        return rows[part], self.hidden if part == "w2" else self.dim


class Llama2cCheckpoint(TensorFile):
    """Implements `Source`. Raises CorruptFile where the file's size is not what its header says."""

    generation_config: None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            raw = bytearray(min(self._file.size, _VERSIONED_BYTES))
            self._file.read_into(0, memoryview(raw), "the header")
            self._header = _header(path.name, bytes(raw))
            self._digest = hashlib.sha256(raw).hexdigest()
            self.tensors: Mapping[str, TensorInfo] = MappingProxyType(self._places())
            self.metadata: Mapping[str, object] = tokenizer_metadata(path, self._header.vocabulary)
        except BaseException:
            self.close()
            raise
        self.config = _config(self._header)

    @property
    def fingerprint(self) -> str:
        """sha256 over header, size and time of the file."""
        return hashlib.sha256(f"llama2c {self._digest} {self.stamp}".encode()).hexdigest()

    def info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise CorruptFile(f"{self.path.name} has no tensor {name!r}, only those of a plain Llama")
        return self.tensors[name]

    def input_order(self, name: str) -> None:
        return None

    def float32(self, name: str) -> NDArray[np.float32]:
        info = self.info(name)
        raw = self._rows(info, 0, info.shape[0])
        return dequantize(BY_NAME[info.dtype], raw.reshape(-1)).reshape(info.shape)

    def row_dtype(self, name: str) -> str:
        return self.info(name).dtype

    def read_rows(self, name: str, start_row: int, row_count: int, out: memoryview) -> None:
        rows = self._rows(self.info(name), start_row, row_count).reshape(-1)
        np.frombuffer(out, np.uint8)[: rows.size] = rows

    def _rows(self, info: TensorInfo, start: int, count: int) -> NDArray[np.uint8]:
        """Rows as row_dtype in the order of the Hugging Face checkpoint."""
        if not info.name.endswith(("q_proj.weight", "k_proj.weight")):
            return self._stored(info, start, count)
        head = self._header.dim // self._header.heads
        rows = RowOrder.PAIRS.stored(np.arange(start, start + count), info.shape[0], head)
        return gather_rows(lambda first, many: self._stored(info, first, many), rows)

    def _stored(self, info: TensorInfo, start: int, count: int) -> NDArray[np.uint8]:
        if info.dtype == "F32":
            return self._bytes(info, start, count, info.nbytes // info.shape[0])
        n, k = info.shape
        codes = self._bytes(info, start, count, k)
        scales_info = TensorInfo(
            info.name, "F32", (n, k), 4 * n * k // self._header.group, info.file, info.offset + n * k
        )
        scales = self._bytes(scales_info, start, count, scales_info.nbytes // n).view("<f4")
        if not np.isfinite(scales).all():
            raise CorruptFile(f"tensor {info.name!r} of {self.path.name} has scales that are NaN or infinite")
        return byte_blocks(codes, np.repeat(scales, self._header.group // 32, axis=1))

    def _bytes(self, info: TensorInfo, start: int, count: int, row_bytes: int) -> NDArray[np.uint8]:
        rows = np.empty((count, row_bytes), np.uint8)
        self.read_into(info, start * row_bytes, rows.reshape(-1).data)
        return rows

    def _places(self) -> dict[str, TensorInfo]:
        header = self._header
        offset = _VERSIONED_BYTES if header.version else 4 * len(_FIELDS)
        places: dict[str, TensorInfo] = {}
        for part in _order(header):
            if part == "rotation":
                offset += 4 * header.context * (header.dim // header.heads)
                continue
            shape = header.shape(part)
            dtype = "S8_G32" if header.version == 2 and len(shape) == 2 else "F32"
            nbytes = math.prod(shape)
            nbytes = 4 * nbytes if dtype == "F32" else nbytes + 4 * (nbytes // header.group)
            if offset + nbytes * (header.layers if part in _LAYER_NAMES else 1) > self._file.size:
                offset = self._file.size + 1  # before a hostile number of layers becomes as many names
                break
            for name in _names(part, header.layers):
                places[name] = TensorInfo(name, dtype, shape, nbytes, self.path, offset)
                offset += nbytes
        if offset != self._file.size:
            needed = "more" if offset > self._file.size else f"{offset:,}"
            raise CorruptFile(
                f"{self.path.name} has {self._file.size:,} bytes, its header asks for {needed} ({header}): "
                "it is cut short or no llama2.c model (.bin files of PyTorch may run code and are never read)"
            )
        return places


def _header(name: str, raw: bytes) -> _Header:
    if len(raw) < 4 * len(_FIELDS):
        raise CorruptFile(f"{name} has {len(raw)} bytes, the header of a llama2.c model {4 * len(_FIELDS)}")
    version, shared, group = 0, True, 0
    values = struct.unpack_from("<7i", raw)
    if struct.unpack_from("<I", raw)[0] == _MAGIC:
        if len(raw) < _VERSIONED_BYTES:
            raise CorruptFile(f"{name} has {len(raw)} bytes, its header alone has {_VERSIONED_BYTES}")
        version, *values, shared, group = struct.unpack_from("<i7iBi", raw, 4)
        if version not in (1, 2):
            raise UnsupportedModel(f"{name} has the llama2.c version {version}; known: legacy, 1 and 2")
    elif values[5] < 0:
        shared, values = False, (*values[:5], -values[5], values[6])
    for field, value in zip(_FIELDS, values, strict=True):
        if not 0 < value < 1 << 24:
            raise CorruptFile(
                f"{name} is no llama2.c model: its {field} is {value:,} (.bin files of PyTorch may run code "
                "and are never read: convert them to safetensors)"
            )
    dim, hidden, layers, heads, kv_heads, vocabulary, context = values
    if dim % heads or heads % kv_heads or dim // heads % 2:
        raise CorruptFile(
            f"{name} has dim {dim}, {heads} heads and {kv_heads} key heads: whole even heads expected"
        )
    if version == 2 and (group < 1 or group % 32 or dim % group or hidden % group):
        raise UnsupportedModel(
            f"{name} has groups of {group} inputs for rows of {dim} and {hidden}; supported are multiples of "
            "32 that divide both: export it with another group size, or as version 1"
        )
    return _Header(
        dim, hidden, layers, heads, kv_heads, vocabulary, context, version, bool(shared), max(group, 32)
    )


def _order(header: _Header) -> list[str]:
    matrices = ["wq", "wk", "wv", "wo"]
    head = [] if header.shared else [_HEAD]
    if header.version == 0:
        return [_EMBED, "att", *matrices, "ffn", "w1", "w2", "w3", _NORM, "rotation", *head]
    return ["att", "ffn", _NORM, _EMBED, *matrices, "w1", "w2", "w3", *head]


def _names(part: str, layers: int) -> list[str]:
    if part not in _LAYER_NAMES:
        return [f"{part}.weight"]
    return [f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight" for layer in range(layers)]


def _config(header: _Header) -> dict[str, object]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": header.dim,
        "intermediate_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "vocab_size": header.vocabulary,
        "max_position_embeddings": header.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": header.shared,
    }
