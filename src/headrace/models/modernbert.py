"""ModernBERT: an encoder with RoPE, norms before attention and MLP, and sliding windows on most layers."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_act, read_decoder, read_windows
from headrace.models.rope import Rope, read_rope
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gated_act import gated_act
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, find, integer, number


def read_config(config: Config) -> DecoderConfig:
    c = read_decoder({name: value for name, value in config.items() if not name.startswith("rope_")})
    every = integer(config, "global_attn_every_n_layers", 3)
    # `local_attention` counts both sides; `window` counts one side, including the token itself.
    window = integer(config, "local_attention") // 2 + 1
    windows = read_windows(config, c.layers, window, lambda layer: layer % every != 0)
    full = _rope(config, c.head_dim, "full_attention", number(config, "global_rope_theta", 160_000.0))
    local = _rope(config, c.head_dim, "sliding_attention", number(config, "local_rope_theta", 10_000.0))
    bias = boolean(config, "attention_bias", False)
    return replace(
        c,
        eps=number(config, "norm_eps", minimum=0.0),
        act=read_act(config, "hidden_activation"),
        windows=windows,
        ropes=tuple(local if window else full for window in windows),
        bidirectional=True,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=boolean(config, "mlp_bias", False),
        norm_bias=boolean(config, "norm_bias", False),
    )


def _rope(config: Config, head_dim: int, kind: str, theta: float) -> Rope:
    table = find(config, f"rope_parameters.{kind}")
    return read_rope({"rope_theta": theta, "rope_parameters": table}, head_dim)


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at, n = f"model.layers.{layer}.attn", c.hidden
    q, k, v = (
        project(m, x, f"{at}.Wqkv", n, bias=c.qkv_bias, part=TensorSlice(of=3 * n, first=i * n))
        for i in range(3)
    )
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.Wo", n, bias=c.output_bias)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at, n = f"model.layers.{layer}.mlp", c.intermediate
    gate, up = (
        project(m, x, f"{at}.Wi", n, bias=c.mlp_bias, part=TensorSlice(of=2 * n, first=i * n))
        for i in range(2)
    )
    return project(m, gated_act(gate, up, kind=c.act), f"{at}.Wo", c.hidden, bias=c.mlp_bias)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    x = layer_norm(
        m, c, blocks.embed_tokens(m, c, "model.embeddings.tok_embeddings"), "model.embeddings.norm"
    )
    for layer in range(c.layers):
        at = f"model.layers.{layer}"
        y = (
            layer_norm(m, c, x, f"{at}.attn_norm") if layer else x
        )  # the first layer reads rows that are already normed
        x = add(x, attention(m, c, layer, y))
        x = add(x, mlp(m, c, layer, layer_norm(m, c, x, f"{at}.mlp_norm")))
    return layer_norm(m, c, x, "model.final_norm")
