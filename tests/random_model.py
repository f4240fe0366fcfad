"""A Llama of any size with random weights and the shipped tokenizer, for where its size counts."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np

from headrace.weights.hub.bundled import list_bundled

HEAD = 64


def random_model(target: Path, *, hidden: int, intermediate: int, layers: int, context: int = 1024) -> Path:
    """Writes the folder, in bfloat16; every query head has a key head of its own."""
    shutil.copytree(list_bundled()["novelette"], target)
    config = json.loads((target / "config.json").read_text())
    heads = hidden // HEAD
    config |= {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    config |= {"head_dim": HEAD, "num_attention_heads": heads, "num_key_value_heads": heads}
    config |= {"max_position_embeddings": context}
    (target / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"}
        shapes |= {f"{at}mlp.{name}_proj.weight": [intermediate, hidden] for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": [hidden, intermediate]}
        shapes |= {f"{at}{name}_layernorm.weight": [hidden] for name in ("input", "post_attention")}
    _write(target / "model.safetensors", shapes)
    return target


def _write(path: Path, shapes: dict[str, list[int]]) -> None:
    rng = np.random.default_rng(0)
    header: dict[str, object] = {}
    parts: list[bytes] = []
    end = 0
    for name, shape in shapes.items():
        values = rng.normal(0, 0.02, shape).astype(np.float32)
        parts.append((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
