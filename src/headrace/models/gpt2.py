"""GPT-2: learned positions instead of RoPE, matrices stored as [inputs, outputs], fused q, k and v."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_decoder
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gather import gather
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number, text


def read_config(config: Config) -> DecoderConfig:
    if boolean(config, "scale_attn_by_inverse_layer_idx", False):
        raise UnsupportedModel(
            "config.json: scale_attn_by_inverse_layer_idx is not supported; set in no GPT-2"
        )
    common: Config = {
        # `intermediate_size` is there only in configs made from GGUF files.
        "intermediate_size": integer(
            config, "n_inner", integer(config, "intermediate_size", 4 * integer(config, "hidden_size"))
        ),
        "hidden_act": text(config, "activation_function"),
    }
    c = read_decoder(config | common)
    return replace(
        c,
        eps=number(config, "layer_norm_epsilon", minimum=0.0),
        ropes=(None,) * c.layers,
        attention_scale=c.attention_scale if boolean(config, "scale_attn_weights", True) else 1.0,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        # Only configs made from GGUF files, which hold [outputs, inputs], set this field.
        transposed=boolean(config, "transposed_weights", True),
    )


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at, n = f"transformer.h.{layer}.attn", c.hidden
    q, k, v = (
        project(
            m,
            x,
            f"{at}.c_attn",
            n,
            bias=True,
            part=TensorSlice(of=3 * n, first=i * n, transposed=c.transposed),
        )
        for i in range(3)
    )
    y = blocks.attention(m, c, layer, q, k, v)
    return project(m, y, f"{at}.c_proj", n, bias=True, part=TensorSlice(of=n, transposed=c.transposed))


def define(m: Builder, c: DecoderConfig) -> Value:
    positions = embed(m.positions, m.weight("transformer.wpe.weight", c.context, c.hidden))
    x = add(blocks.embed_tokens(m, c, "transformer.wte"), positions)
    for layer in range(c.layers):
        at = f"transformer.h.{layer}"
        x = add(x, attention(m, c, layer, layer_norm(m, c, x, f"{at}.ln_1")))
        y = layer_norm(m, c, x, f"{at}.ln_2")
        x = add(x, blocks.mlp(m, c, y, f"{at}.mlp.c_fc", f"{at}.mlp.c_proj", transposed=c.transposed))
    x = layer_norm(m, c, gather(x, m.rows), "transformer.ln_f")
    return blocks.logits(m, c, x, tied="transformer.wte")
