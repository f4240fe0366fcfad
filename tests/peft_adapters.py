"""Adapters for tests: made and computed by peft, or written by hand in its layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.ops.value import Array, Ints

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, model: Path, *, seed: int = 0, rank: int = 4, size: float = 0.3, **fields: Any
) -> Path:
    """A random adapter of all seven matrices of a model of the llama family, without peft."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (n, k) in shapes.items():
            at = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{at}.lora_A.weight"] = (rng.normal(size=(rank, k)) / np.sqrt(k)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = (size * rng.normal(size=(n, rank))).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(ALL)} | fields
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def peft_adapter(folder: Path, model: Path, prompt: Ints, *, seed: int = 0, **fields: Any) -> Array:
    """Make a random adapter of a model with peft, save it, and return its logits of the prompt, [T, V]."""
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    base = transformers.AutoModelForCausalLM.from_pretrained(
        model, attn_implementation="eager", dtype=torch.float32
    ).eval()
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": list(ALL)} | fields)
    adapted = peft.get_peft_model(base, config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in adapted.named_parameters():
        if ".lora_B." in name:
            with torch.no_grad():
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    with torch.no_grad():
        return adapted(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0].numpy()
