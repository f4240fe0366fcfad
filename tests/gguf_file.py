"""Writes GGUF files for tests: small ones, hostile ones, and whole models made of a Hugging Face folder."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.quant_types import BY_NAME

_NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is written as it is: its type number and its bytes."""

    type: int
    data: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A tensor: name of the ggml type, row-major shape, bytes; `offset` None is the next free place."""

    type: str | int
    shape: tuple[int, ...]
    data: bytes
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value_of(value: Any) -> Raw:
    """Numbers are u32, i32 or f32; arrays of NumPy keep their type; lists are of strings or of arrays."""
    match value:
        case Raw():
            return value
        case bool():
            return Raw(7, bytes([value]))
        case int():
            return Raw(4, struct.pack("<I", value)) if value >= 0 else Raw(5, struct.pack("<i", value))
        case float():
            return Raw(6, struct.pack("<f", value))
        case str():
            return Raw(8, text(value))
        case np.ndarray():
            kind = 7 if value.dtype == np.bool_ else _NUMBERS[value.dtype.str[1:]]
            return Raw(9, struct.pack("<IQ", kind, value.size) + value.tobytes())
        case _:
            entries = [value_of(entry) for entry in value]
            kind = entries[0].type if entries else 8
            head = struct.pack("<IQ", kind, len(entries))
            return Raw(9, head + b"".join(entry.data for entry in entries))


def gguf_bytes(
    metadata: Mapping[str, Any] | list[tuple[str, Any]],
    tensors: Mapping[str, Stored] | list[tuple[str, Stored]],
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """The file; `counts` (tensors, keys) instead of the true ones. Alignment as the metadata says."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else metadata
    entries = list(tensors.items()) if isinstance(tensors, Mapping) else tensors
    found = dict(pairs).get("general.alignment", 32)
    alignment = found if isinstance(found, int) and found > 0 else 32
    header = [b"GGUF", struct.pack("<IQQ", version, *(counts or (len(entries), len(pairs))))]
    for key, value in pairs:
        raw = value_of(value)
        header += [text(key), struct.pack("<I", raw.type), raw.data]
    data = bytearray()
    for name, tensor in entries:
        offset = len(data) if tensor.offset is None else tensor.offset
        kind = tensor.type if isinstance(tensor.type, int) else BY_NAME[tensor.type].id
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        header += [text(name), shape, struct.pack("<IQ", kind, offset % 2**64)]
        data += tensor.data + bytes(-len(tensor.data) % alignment)
    start = b"".join(header)
    return start + bytes(-len(start) % alignment) + data


def encode(values: np.ndarray, type: str) -> Stored:
    """float32 as F32, F16, BF16 (cut, so only for values that fit) or Q8_0; what Q8_0 cannot hold is F16."""
    if type == "Q8_0" and (values.ndim < 2 or values.shape[-1] % 32):
        type = "F32" if values.ndim < 2 else "F16"
    if type == "F32":
        data = values.astype("<f4").tobytes()
    elif type == "F16":
        data = values.astype("<f2").tobytes()
    elif type == "BF16":
        data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    else:
        data = _q8_0(values.reshape(-1, 32))
    return Stored(type, values.shape, data)


def _q8_0(blocks: np.ndarray) -> bytes:
    """Of 61 scales around the one that fits the largest weight, the one of least error."""
    largest = np.abs(blocks).max(axis=1, keepdims=True) / 127
    error = np.full(largest.shape, np.inf)
    scale, codes = np.zeros_like(largest), np.zeros_like(blocks)
    for factor in np.linspace(0.9, 1.02, 61):
        tried = (largest * factor).astype(np.float16).astype(np.float32)
        rounded = np.clip(np.rint(blocks / np.where(tried == 0, 1, tried)), -128, 127)
        found = np.square(rounded * tried - blocks).sum(axis=1, keepdims=True)
        better = found < error
        scale, codes = np.where(better, tried, scale), np.where(better, rounded, codes)
        error = np.where(better, found, error)
    parts = scale.astype("<f2").view(np.uint8), codes.astype(np.int8).view(np.uint8)
    return np.concatenate(parts, axis=1).tobytes()


def model_metadata(folder: Path) -> dict[str, Any]:
    """The keys of a llama, mistral, qwen2 or qwen3 folder's config."""
    config = json.loads((folder / "config.json").read_text())
    name = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    rope = {"rope_theta": config.get("rope_theta", 10000.0)}
    rope |= config.get("rope_parameters") or config.get("rope_scaling") or {}
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    keys: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
    }
    scaling = rope.get("rope_type", rope.get("type"))
    if scaling in ("linear", "yarn"):
        keys["rope.scaling.type"] = scaling
        keys["rope.scaling.factor"] = float(rope["factor"])
    if scaling == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if config["model_type"] == "mistral" and config.get("sliding_window"):
        keys["attention.sliding_window"] = config["sliding_window"]
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in keys.items()}


def model_tensors(folder: Path, type: str, *, embedding: str | None = None) -> dict[str, Stored]:
    """All tensors of a folder, the matrices as `type` (the embedding may have another); Llama's queries and
    keys with rows in pairs."""
    with open_checkpoint(folder) as checkpoint:
        config: Any = checkpoint.config
        paired = config["model_type"] in ("llama", "mistral")
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        tensors: dict[str, Stored] = {}
        for name in checkpoint.tensors:
            values = checkpoint.float32(name)
            stem, suffix = name.rsplit(".", 1)
            layer = re.match(r"model\.layers\.(\d+)\.", stem)
            inner = stem[layer.end() :] if layer else stem
            if paired and inner in ("self_attn.q_proj", "self_attn.k_proj"):
                halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
            prefix = f"blk.{layer[1]}." if layer else ""
            stored = embedding if embedding and inner == "model.embed_tokens" else type
            stored = stored if values.ndim > 1 else "F32"
            tensors[f"{prefix}{_NAMES[inner]}.{suffix}"] = encode(np.ascontiguousarray(values), stored)
        return tensors
