"""Rows of random blocks with scales of a sensible size, and a small Llama made of them as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gguf_file import Stored, gguf_bytes
from headrace.weights.quant_types import BY_NAME, READABLE, SCALED, WITHOUT_KERNEL, dequantize
from headrace.weights.quant_types.block_type import BlockType

GGML = [kind for kind in READABLE if kind.block_size > 1 and kind.name not in WITHOUT_KERNEL]
WIDENED = [kind for kind in READABLE if kind.name in WITHOUT_KERNEL and kind.name != "IQ1_M"]
KINDS = [*GGML, *SCALED]
# Where half floats lie in the blocks, and how large each is to be so that the weights' mean is near zero;
# elsewhere the scale is a float32 in front, MXFP4's is a power of two.
_HALVES = {
    "Q4_0": {0: 1.0},
    "Q4_1": {0: 1.0, 2: -7.5},
    "Q5_0": {0: 1.0},
    "Q5_1": {0: 1.0, 2: -15.5},
    "Q8_0": {0: 1.0},
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
    **{name: {0: 1.0} for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")},
    "TQ1_0": {52: 1.0},
    "TQ2_0": {64: 1.0},
}


def random_bytes(kind: BlockType, n: int, k: int, seed: int = 1) -> np.ndarray:
    """Rows [n, bytes of a row] of any bytes whatever."""
    return np.random.default_rng(seed).integers(0, 256, (n, kind.row_bytes(k)), np.uint8)


def random_rows(kind: BlockType, n: int, k: int, seed: int = 1, size: float = 1.0) -> np.ndarray:
    """Rows [n, bytes of a row]; the weights' root mean square is about `size`."""
    random = np.random.default_rng(seed)
    blocks = random_bytes(kind, n, k, seed).reshape(-1, kind.block_bytes)
    if kind.name == "MXFP4":
        blocks[:, 0] = random.integers(125, 131, len(blocks)) + int(np.log2(size))
    elif kind.name == "E4M3_G32":
        blocks[:, 4:] = np.where(blocks[:, 4:] & 127 == 127, 0, blocks[:, 4:])

    elif kind.name == "U4_G32":
        blocks[:, 4] &= 15

    def set_scales(by: float) -> None:
        values = (by * random.uniform(0.5, 1.5, (len(blocks), 1))).astype(np.float32)
        for at, share in _HALVES.get(kind.name, {}).items():
            blocks[:, at : at + 2] = (values * share).astype(np.float16).view(np.uint8)
        if kind in SCALED:
            blocks[:, :4] = values.view(np.uint8)

    set_scales(1.0)
    set_scales(size / float(np.sqrt(np.square(dequantize(kind, blocks.reshape(-1))).mean())))
    return blocks.reshape(n, -1)


def block_model(folder: Path, type: str) -> Path:
    """A Llama of two layers whose matrices are random blocks of `type`, with a vocabulary of bytes."""
    hidden, heads, kv_heads, vocabulary = 256, 4, 2, 259
    head_dim = hidden // heads
    matrices = {"token_embd": (vocabulary, hidden), "output": (vocabulary, hidden)}
    vectors = ["output_norm"]
    for layer in range(2):
        shapes = {
            "attn_q": hidden,
            "attn_k": kv_heads * head_dim,
            "attn_v": kv_heads * head_dim,
            "attn_output": hidden,
            "ffn_gate": 512,
            "ffn_up": 512,
        }
        matrices |= {f"blk.{layer}.{name}": (rows, hidden) for name, rows in shapes.items()}
        matrices[f"blk.{layer}.ffn_down"] = (hidden, 512)
        vectors += [f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm"]
    kind = BY_NAME[type]
    tensors = {
        f"{name}.weight": Stored(type, shape, random_rows(kind, *shape, seed, size=1 / 16).tobytes())
        for seed, (name, shape) in enumerate(matrices.items())
    }
    ones = np.ones(hidden, np.float32).tobytes()
    tensors |= {f"{name}.weight": Stored("F32", (hidden,), ones) for name in vectors}
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 256,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        "tokenizer.ggml.scores": np.zeros(vocabulary, np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = folder / f"blocks-{type}.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path
