"""Writes small Llama checkpoints in quantized schemes, after each scheme's documentation.

A writer draws codes, scales and zeros of a matrix and gives its stored tensors and its float32 weights; it
shares no code with the readers.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
Writer = Callable[[np.random.Generator, int, int], tuple[Tensors, np.ndarray]]
"""(random, n, k) to stored tensors by the name after the layer's, and weights [n, k]."""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Element types that NumPy lacks: the bits, as a field that bears the type's name.
FP8 = np.dtype([("F8_E4M3", np.uint8)])
BF16 = np.dtype([("BF16", np.uint16)])


def _e4m3(code: int) -> float:
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    value = math.ldexp(mantissa / 8 + (exponent > 0), max(exponent, 1) - 7)
    return -value if sign else value


E4M3 = np.array([_e4m3(code) for code in range(256)], np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])
_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """`settings` is the quantization_config."""

    settings: dict[str, Any]
    write: Writer


def save(path: Path, tensors: Tensors) -> None:
    """A safetensors file; `safetensors` has no FP8 of NumPy."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        dtype = array.dtype.names[0] if array.dtype.names else _NAMES[array.dtype.name]
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def model_shapes() -> dict[str, tuple[int, ...]]:
    """Of every tensor of the plain model."""
    hidden, inner, vocabulary = 64, 128, 128
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        shapes |= {f"{at}.self_attn.{x}_proj.weight": (hidden, hidden) for x in "qo"}
        shapes |= {f"{at}.self_attn.{x}_proj.weight": (hidden // 2, hidden) for x in "kv"}
        shapes |= {f"{at}.mlp.{x}_proj.weight": (inner, hidden) for x in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def write_model(folder: Path, scheme: Scheme, *, seed: int = 0) -> Tensors:
    """A folder of config.json and model.safetensors; gives the float32 weights of the plain model."""
    random = np.random.default_rng(seed)
    stored: Tensors = {}
    plain: Tensors = {}
    for name, shape in model_shapes().items():
        layer = name.removesuffix(".weight")
        if "_proj" in name:
            parts, plain[name] = scheme.write(random, *shape)
            stored |= {f"{layer}.{part}": array for part, array in parts.items()}
        else:
            center = 1.0 if len(shape) == 1 else 0.0
            stored[name] = plain[name] = (center + 0.1 * random.standard_normal(shape)).astype(np.float32)
    write_config(folder, scheme.settings)
    save(folder / "model.safetensors", stored)
    return plain


def write_config(folder: Path, settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": settings}))


def pack(codes: np.ndarray, bits: int, places: tuple[int, ...] | None = None) -> np.ndarray:
    """[rows, count] of codes to int32 [rows, words]; `places[i]` is the column in field i."""
    per_word = 32 // bits
    padded = np.zeros((len(codes), -(-codes.shape[1] // per_word) * per_word), np.uint64)
    padded[:, : codes.shape[1]] = codes
    words = np.zeros((len(codes), padded.shape[1] // per_word), np.uint64)
    for i in range(per_word):
        words |= padded[:, (places[i] if places else i) :: per_word] << np.uint64(bits * i)
    return words.astype(np.uint32).view(np.int32)


def scales(random: np.random.Generator, *shape: int) -> np.ndarray:
    return (0.02 + 0.02 * random.random(shape)).astype(np.float32)


def gptq(*, bits: int = 4, group: int = 32, act_order: bool = False, offset: int = 1) -> Writer:
    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        size = k if group < 0 else group
        codes = random.integers(0, 1 << bits, (k, n))
        zeros = random.integers(0, 16, (k // size, n)) if bits == 4 else np.full((k // size, n), 128)
        scale = (scales(random, k // size, n) / (1 if bits == 4 else 12)).astype(np.float16)
        index = np.arange(k) // size
        if act_order:  # one order for all matrices of a width, as one input has one
            index = np.random.default_rng(k).permutation(index)
        w = scale.astype(np.float32)[index] * (codes - zeros[index]).astype(np.float32)
        stored = {
            "qweight": np.ascontiguousarray(pack(codes.T, bits).T),
            "qzeros": pack((zeros - offset) % (1 << bits), bits),
            "scales": scale,
            "g_idx": index.astype(np.int32),
        }
        return stored, w.T

    return write


def awq(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
    codes, zeros = random.integers(0, 16, (k, n)), random.integers(0, 16, (k // 32, n))
    scale = scales(random, k // 32, n).astype(np.float16)
    index = np.arange(k) // 32
    w = scale.astype(np.float32)[index] * (codes - zeros[index]).astype(np.float32)
    places = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": pack(codes, 4, places), "qzeros": pack(zeros, 4, places), "scales": scale}, w.T


def fp8(*, scale: str, block: int = 0) -> Writer:
    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        codes = random.integers(0, 256, (n, k), np.uint8)
        codes[codes & 127 > 0x60] = 0x38  # no huge ones, no NaN
        if block:
            grid = scales(random, -(-n // block), -(-k // block)) / 10
            full = grid[np.arange(n)[:, None] // block, np.arange(k) // block]
        else:
            grid = scales(random, n, 1) / 10
            full = grid
        return {"weight": codes.view(FP8), scale: grid}, E4M3[codes] * full

    return write


def packed_ints(*, bits: int, group: int, zeros: bool = False, act_order: bool = False) -> Writer:
    half = 1 << (bits - 1)

    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        size = k if group < 0 else group
        codes = random.integers(-half, half, (n, k))
        zero = random.integers(-half, half, (n, k // size)) if zeros else np.zeros((n, k // size), int)
        scale = (scales(random, n, k // size) * 8 / half).astype(np.float32).view(np.uint32) & 0xFFFF0000
        scale = scale.view(np.float32)
        index = np.arange(k) // size
        if act_order:
            index = np.random.default_rng(k).permutation(index)
        w = scale[:, index] * (codes - zero[:, index]).astype(np.float32)
        stored = {
            "weight_packed": pack(codes + half, bits),
            "weight_scale": (scale.view(np.uint32) >> 16).astype(np.uint16).view(BF16),
            "weight_shape": np.array([n, k], np.int64),
        }
        if zeros:
            stored["weight_zero_point"] = np.ascontiguousarray(pack((zero + half).T, bits).T)
        if act_order:
            stored["weight_g_idx"] = index.astype(np.int32)
        return stored, w

    return write


def int8(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
    codes, scale = random.integers(-128, 128, (n, k)).astype(np.int8), scales(random, n, 1) / 16
    return {"weight": codes, "weight_scale": scale}, codes.astype(np.float32) * scale


def nvfp4(*, packed: bool) -> Writer:
    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        codes = random.integers(0, 16, (n, k), np.uint8)
        scale = random.integers(0x40, 0x60, (n, k // 16), np.uint8)
        pairs = codes[:, ::2] | codes[:, 1::2] << 4
        raw_scale = scale.view(FP8)
        whole = np.float32(300.0 if packed else 0.003)
        full = E4M3[scale] / whole if packed else E4M3[scale] * whole
        w = E2M1[codes] * np.repeat(full.astype(np.float32), 16, axis=1)
        if packed:
            return {
                "weight_packed": pairs,
                "weight_scale": raw_scale,
                "weight_global_scale": np.array([whole]),
            }, w
        return {"weight": pairs, "weight_scale": raw_scale, "weight_scale_2": np.array(whole)}, w

    return write


def mxfp4(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
    codes = random.integers(0, 16, (n, k), np.uint8)
    exponent = random.integers(120, 124, (n, k // 32), np.uint8)
    w = E2M1[codes] * np.repeat(np.exp2(exponent.astype(np.float32) - 127), 32, axis=1)
    return {"weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, "weight_scale": exponent}, w


def hadamard(size: int) -> np.ndarray:
    """Orthonormal, in Sylvester's order."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / np.sqrt(size)).astype(np.float32)


def rotated(*, bits: int) -> Writer:
    """Headrace's own: rows times a Hadamard matrix for each 128 inputs, or 64."""

    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        scale = scales(random, n) / 16
        if bits == 8:
            codes = random.integers(-127, 128, (n, k)).astype(np.int8)
            stored, integers = {"weight_codes": codes}, codes.astype(np.float32)
        else:
            codes = random.integers(0, 16, (n, k // 32, 32), np.uint8)
            multiplier = random.integers(1, 18, (n, k // 32), np.uint8)
            offset = random.integers(0, 256 - 15 * multiplier.astype(int)).astype(np.uint8)
            integers = multiplier[..., None].astype(np.float32) * codes + offset[..., None] - 128
            stored = {
                "weight_codes": (codes[..., :16] | codes[..., 16:] << 4).reshape(n, k // 2),
                "weight_groups": np.stack([multiplier, offset], axis=2).reshape(n, -1),
            }
        size = 128 if k % 128 == 0 else 64
        turned = (integers.reshape(n, -1, size) * scale[:, None, None]) @ hadamard(size)
        return stored | {"weight_scale": scale}, turned.reshape(n, k).astype(np.float32)

    return write


def hqq(*, bits: float, axis: int, group: int, as_float: bool = False) -> Writer:
    """Parts of the matrix of codes lie in the bits of one word, the first in the highest."""
    packing = {4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1.58: "2bit_u8", 1: "1bit_u8"}.get(bits, "8bit_u8")
    width = int(packing[0])
    parts = 10 if width == 3 else 8 // width

    def text(value: str) -> np.ndarray:
        return np.frombuffer(value.encode(), np.uint8)

    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        rows, columns = (n * k // group, group) if axis == 1 else (group, n * k // group)
        codes = random.integers(0, round(2**bits - 1) + 1, (rows, columns))
        shape = (rows, 1) if axis == 1 else (1, columns)
        scale = (scales(random, *shape) / 2**bits).astype(np.float16)
        zero = (random.random(shape) * 2**bits).astype(np.float16)
        weights = (codes.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
        step = -(-rows // parts)
        padded = np.concatenate([codes, np.zeros((step * parts - rows, columns), int)])
        packed = np.zeros((step, columns), np.int64)
        for part in range(parts):
            packed |= padded[part * step : (part + 1) * step] << (width * (parts - 1 - part))
        words = packed.astype(np.int32 if width == 3 else np.uint8)
        if as_float:
            words = words.view(np.float16)
        number = np.array(bits, np.float32 if bits == 1.58 else np.int32)
        flags = {"quant_scale": False, "quant_zero": False, "channel_wise": True, "view_as_float": as_float}
        stored = {
            "W_q": words,
            "scale": scale,
            "zero": zero,
            "shape": np.array([n, k], np.int64),
            "nbits": number,
            "group_size": np.array(group, np.int32),
            "axis": np.array(axis, np.int32),
            "packing": text(packing),
            "compute_dtype": text("torch.float16"),
            **{name: np.array(flag, np.uint8) for name, flag in flags.items()},
        }
        return stored, weights.reshape(n, k)

    return write


def sparse(*, two_of_four: bool) -> Writer:
    def write(random: np.random.Generator, n: int, k: int) -> tuple[Tensors, np.ndarray]:
        weights = (0.1 * random.standard_normal((n, k))).astype(np.float16)
        if two_of_four:
            order = random.random((n, k // 4, 4)).argsort(axis=2) < 2
            mask = order.reshape(n, k)
        else:
            mask = random.random((n, k)) < 0.4
            mask[n // 2] = False
        stored = {
            "compressed": weights[mask].reshape(n, k // 2) if two_of_four else weights[mask],
            "bitmask": np.packbits(mask, axis=1, bitorder="little"),
            "shape": np.array([[n], [k]] if two_of_four else [n, k], np.int64),
        }
        if not two_of_four:
            counts = mask.sum(axis=1)
            stored["row_offsets"] = (np.cumsum(counts) - counts).astype(np.int64)
        return stored, np.where(mask, weights, np.float16(0)).astype(np.float32)

    return write


def _sparse(format: str) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "sparsity_config": {"format": format, "targets": ["Linear"]},
    }


def _compressed(format: str) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"]}


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
_AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32}
_FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
SCHEMES = {
    "gptq": Scheme(_GPTQ, gptq()),
    "gptq_act_order": Scheme(_GPTQ | {"desc_act": True}, gptq(act_order=True)),
    "gptq_v2": Scheme(_GPTQ | {"checkpoint_format": "gptq_v2", "group_size": -1}, gptq(offset=0, group=-1)),
    "gptq_8": Scheme(_GPTQ | {"bits": 8}, gptq(bits=8)),
    "awq": Scheme({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq),
    "fp8_blocks": Scheme(_FP8, fp8(scale="weight_scale_inv", block=32)),
    "auto_round": Scheme(_AUTO_ROUND, gptq()),
    "auto_round_awq": Scheme(_AUTO_ROUND | {"packing_format": "auto_round:auto_awq"}, awq),
    "fp8_channels": Scheme({"quant_method": "fbgemm_fp8"}, fp8(scale="weight_scale")),
    "ct_int4": Scheme(_compressed("pack-quantized"), packed_ints(bits=4, group=32)),
    "ct_int4_zeros": Scheme(_compressed("pack-quantized"), packed_ints(bits=4, group=64, zeros=True)),
    "ct_act_order": Scheme(_compressed("pack-quantized"), packed_ints(bits=4, group=32, act_order=True)),
    "ct_int8_packed": Scheme(_compressed("pack-quantized"), packed_ints(bits=8, group=-1)),
    "ct_int8": Scheme(_compressed("int-quantized"), int8),
    "ct_fp8": Scheme(_compressed("float-quantized"), fp8(scale="weight_scale")),
    "ct_nvfp4": Scheme(_compressed("nvfp4-pack-quantized"), nvfp4(packed=True)),
    "ct_mxfp4": Scheme(_compressed("mxfp4-pack-quantized"), mxfp4),
    "ct_sparse": Scheme(_sparse("sparse-bitmask"), sparse(two_of_four=False)),
    "ct_sparse_24": Scheme(_sparse("sparse-24-bitmask"), sparse(two_of_four=True)),
    "hqq": Scheme({"quant_method": "hqq"}, hqq(bits=4, axis=1, group=32)),
    "hqq_axis_0": Scheme({"quant_method": "hqq"}, hqq(bits=3, axis=0, group=64)),
    "rotated_4": Scheme({"quant_method": "headrace", "format": "rotated"}, rotated(bits=4)),
    "rotated_8": Scheme({"quant_method": "headrace", "format": "rotated"}, rotated(bits=8)),
    "nvfp4": Scheme({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4(packed=False)),
}
