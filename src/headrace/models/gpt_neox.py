"""GPT-NeoX and Pythia: attention and MLP in parallel, partial RoPE, one matrix for q, k and v."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.gather import gather
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, number


def read_config(config: Config) -> DecoderConfig:
    theta, share = number(config, "rotary_emb_base", 10000.0), number(config, "rotary_pct", 0.25)
    c = read_decoder(config | {"rope_theta": theta}, rotary_share=share)
    bias = boolean(config, "attention_bias", True)
    return replace(
        c,
        eps=number(config, "layer_norm_eps", minimum=0.0),
        parallel=boolean(config, "use_parallel_residual", True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
    )


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    """Per head, the fused matrix holds the rows of q, then of k, then of v."""
    at, size = f"gpt_neox.layers.{layer}.attention", c.heads * c.head_dim
    q, k, v = (
        project(
            m,
            x,
            f"{at}.query_key_value",
            size,
            bias=c.qkv_bias,
            part=TensorSlice(of=3 * size, first=i * c.head_dim, block=c.head_dim, stride=3 * c.head_dim),
        )
        for i in range(3)
    )
    return project(m, blocks.attention(m, c, layer, q, k, v), f"{at}.dense", c.hidden, bias=c.output_bias)


def define(m: Builder, c: DecoderConfig) -> Value:
    x = blocks.embed_tokens(m, c, "gpt_neox.embed_in")
    for layer in range(c.layers):
        at = f"gpt_neox.layers.{layer}"
        y = add(x, attention(m, c, layer, layer_norm(m, c, x, f"{at}.input_layernorm")))
        z = layer_norm(m, c, x if c.parallel else y, f"{at}.post_attention_layernorm")
        x = add(y, blocks.mlp(m, c, z, f"{at}.mlp.dense_h_to_4h", f"{at}.mlp.dense_4h_to_h"))
    x = layer_norm(m, c, gather(x, m.rows), "gpt_neox.final_layer_norm")
    return blocks.logits(m, c, x, "embed_out", "gpt_neox.embed_in")
