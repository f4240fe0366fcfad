"""Models that goldens are made with where a checkpoint's own config is not one that `transformers` reads.

NomicBERT, GTE and Jina's XLM-RoBERTa have a class there, with other fields and names of tensors. JinaBERT has
none: it is written here after its paper (Günther et al. 2023, section 3) and ALiBi's (Press et al. 2022).
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

from golden_families import Settings

# Model types whose checkpoints name tensors otherwise than `transformers` does in memory.
RENAMED = ("nomic_bert", "gte", "jina_embeddings_v3")
NOMIC = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


def native_settings(settings: Settings) -> Settings:
    """The config with which `transformers` computes the same; the same one where it reads it itself."""
    kind, name = settings["model_type"], str(settings["architectures"][0])
    if kind == "nomic_bert" and "n_embd" in settings:
        plain = {NOMIC.get(field, field): value for field, value in settings.items()}
        return plain | {
            "rope_parameters": {"rope_theta": settings["rotary_emb_base"], "rope_type": "default"}
        }
    if kind == "new":
        plain = {field: value for field, value in settings.items() if field != "rope_scaling"}
        return plain | {"model_type": "gte", "architectures": [name.replace("New", "Gte")]}
    if "use_flash_attn" in settings and settings["position_embedding_type"] == "rotary":
        named = [name.replace("XLMRoberta", "JinaEmbeddingsV3")]
        plain = {field: value for field, value in settings.items() if field != "position_embedding_type"}
        return plain | {
            "model_type": "jina_embeddings_v3",
            "architectures": named,
            "rope_parameters": plain_rope(settings),
        }
    return settings


def plain_rope(settings: Settings) -> Settings:
    """`rope_parameters` of a config that has `rotary_emb_base`."""
    return {"rope_theta": settings["rotary_emb_base"], "rope_type": "default"}


def build(settings: Settings) -> tuple[Any, Any]:
    """A model with its config, in float32 with eager attention."""
    if settings.get("position_embedding_type") == "alibi":
        config = SimpleNamespace(**settings)
        return JinaBert(settings).eval(), config
    with tempfile.TemporaryDirectory() as folder:
        native = native_settings(settings)
        (Path(folder) / "config.json").write_text(json.dumps(native))
        config = AutoConfig.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    named = getattr(transformers, native["architectures"][0])
    model = named._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    scaling = settings.get("rope_scaling") or {}
    if scaling.get("type") == "ntk":
        dim = settings["hidden_size"] // settings["num_attention_heads"]
        base = getattr(model, "gte", model)
        base.rotary_emb.inv_freq = ntk_frequencies(settings["rope_theta"], dim, **scaling)
    return model, config


def ntk_frequencies(theta: float, dim: int, *, factor: float, mixed_b: float | None = None, **_: object):
    """What `rope_scaling` of GTE's checkpoints means: equations 6, 10, 12, 13 of kexue.fm/archives/9706."""
    base = theta if mixed_b else theta * factor
    frequencies = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    if not mixed_b:
        return frequencies / factor ** (2 / dim)
    a = math.log(factor) / (dim / 2) ** mixed_b
    return frequencies / torch.exp(a * torch.arange(1, dim // 2 + 1).float() ** mixed_b)


def named_weights(model: Any, settings: Settings, tied: set[str] = frozenset()) -> dict[str, torch.Tensor]:
    """The parameters under the names of the checkpoints of the config's kind, without those in `tied`."""
    every = model.named_parameters(remove_duplicate=not tied)  # a tied one by its own name, not by its copy's
    weights = {name: p.detach() for name, p in every if name not in tied}
    if native_settings(settings)["model_type"] in RENAMED:
        weights = revert_weight_conversion(model, weights)
    if "use_flash_attn" in settings and settings["position_embedding_type"] == "absolute":
        weights = packed_names(weights)
    if settings["model_type"] == "new":
        weights = {re.sub(r"^gte\.", "new.", name): tensor for name, tensor in weights.items()}
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def packed_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """XLM-RoBERTa's weights as Jina's checkpoints have them."""
    others = {
        "encoder.layer.": "encoder.layers.",
        "attention.output.dense": "mixer.out_proj",
        "attention.output.LayerNorm": "norm1",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        "output.LayerNorm": "norm2",
        "embeddings.LayerNorm": "emb_ln",
    }
    found: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if ".self.key." in name or ".self.value." in name:
            continue
        if ".self.query." in name:
            parts = [weights[name.replace("query", part)] for part in ("query", "key", "value")]
            name, tensor = name.replace("attention.self.query", "mixer.Wqkv"), torch.cat(parts)
        for old, new in others.items():
            name = name.replace(old, new)
        found[name] = tensor
    return found


def slopes(heads: int) -> list[float]:
    """Of each head, by ALiBi's rule for powers of two and its interpolation for other counts."""
    power = 2 ** math.floor(math.log2(heads))
    own = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return own if power == heads else own + slopes(2 * power)[::2][: heads - power]


def named(**parts: nn.Module) -> nn.Module:
    """A module with these parts."""
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


class JinaBert(nn.Module):
    """JinaBERT with the tensor names of its checkpoints, alone or with a head on its pooled output."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.s, n = SimpleNamespace(**settings), settings["hidden_size"]
        self.of_code = "qk-post-norm" in str(settings.get("auto_map"))
        self.classifies = "ForSequence" in settings["architectures"][0]
        base: Any = self
        if self.classifies:
            base = self.bert = nn.Module()
            base.pooler = named(dense=nn.Linear(n, n))
            self.classifier = nn.Linear(n, len(settings["id2label"]))
        base.embeddings = named(
            word_embeddings=nn.Embedding(self.s.vocab_size, n),
            token_type_embeddings=nn.Embedding(self.s.type_vocab_size, n),
            LayerNorm=self.norm(),
        )
        base.encoder = named(layer=nn.ModuleList(self.layer(n) for _ in range(self.s.num_hidden_layers)))
        object.__setattr__(self, "base", base)

    def norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.s.hidden_size, eps=self.s.layer_norm_eps)

    def layer(self, n: int) -> nn.Module:
        inner = self.s.intermediate_size
        projections = {name: nn.Linear(n, n) for name in ("query", "key", "value")}
        if self.of_code:
            projections |= {"layer_norm_q": self.norm(), "layer_norm_k": self.norm()}
            up, down = nn.Linear(n, 2 * inner, bias=False), nn.Linear(inner, n)
            others = {"layer_norm_1": self.norm(), "layer_norm_2": self.norm()}
            others["mlp"] = named(up_gated_layer=up, down_layer=down)
        else:
            up, down = nn.Linear(n, 2 * inner, bias=False), nn.Linear(inner, n)
            others = {"mlp": named(gated_layers=up, wo=down, layernorm=self.norm())}
        output = named(dense=nn.Linear(n, n), LayerNorm=self.norm())
        return named(attention=named(self=named(**projections), output=output), **others)

    def get_input_embeddings(self) -> nn.Module:
        return self.base.embeddings.word_embeddings

    def forward(self, ids: torch.Tensor, token_type_ids: torch.Tensor, **_: object) -> Any:
        at = self.base.embeddings
        x = at.LayerNorm(at.word_embeddings(ids) + at.token_type_embeddings(token_type_ids))[0]
        place = torch.arange(len(x))
        distance = (place[:, None] - place).abs()
        bias = -torch.tensor(slopes(self.s.num_attention_heads))[:, None, None] * distance
        for layer in self.base.encoder.layer:
            x = self.computed(layer, x, bias)
        if not self.classifies:
            return SimpleNamespace(last_hidden_state=x[None])
        return SimpleNamespace(logits=self.classifier(torch.tanh(self.base.pooler.dense(x[:1]))))

    def computed(self, layer: Any, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        at, heads = layer.attention.self, self.s.num_attention_heads
        q, k, v = at.query(x), at.key(x), at.value(x)
        if self.of_code:
            q, k = at.layer_norm_q(q), at.layer_norm_k(k)
        q, k, v = (part.view(len(x), heads, -1).transpose(0, 1) for part in (q, k, v))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[2]) + bias, -1)
        y = layer.attention.output.dense((weights @ v).transpose(0, 1).reshape(len(x), -1))
        y = layer.attention.output.LayerNorm(y + x)
        act = nn.functional.gelu if self.s.feed_forward_type == "geglu" else nn.functional.relu
        if not self.of_code:
            gate, up = layer.mlp.gated_layers(y).chunk(2, -1)
            return layer.mlp.layernorm(layer.mlp.wo(act(gate) * up) + y)
        y = layer.layer_norm_1(y + x)
        up, gate = layer.mlp.up_gated_layer(y).chunk(2, -1)
        return layer.layer_norm_2(layer.mlp.down_layer(up * act(gate)) + y)
