"""GTE (Zhang et al. 2024, mGTE: gte-base-en-v1.5, gte-multilingual-base): BERT with rotary positions and a
gated MLP. `new` is the same under the name that its authors' checkpoints have.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import packed_encoder
from headrace.models.blocks import layer_norm
from headrace.models.decoder_config import DecoderConfig, read_act, read_decoder
from headrace.models.packed_encoder import LayerNames
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number, text

_NAMES = LayerNames("encoder.layer", "attention.qkv_proj", "attention.o_proj", "attn_ln", "mlp_ln")


def read_config(config: Config) -> DecoderConfig:
    positions, norms = (
        text(config, "position_embedding_type", "rope"),
        text(config, "layer_norm_type", "layer_norm"),
    )
    if positions != "rope" or norms != "layer_norm":
        raise UnsupportedModel(
            f"config.json: position_embedding_type '{positions:.40}' with layer_norm_type '{norms:.40}'"
            " is not supported: GTE has 'rope' and 'layer_norm'"
        )
    for field in ("logn_attention_scale", "logn_attention_clip1"):
        if boolean(config, field, False):
            raise UnsupportedModel(
                f"config.json: {field} scales scores by the length of a text, which is not supported"
            )
    return replace(
        read_decoder(config),
        eps=number(config, "layer_norm_eps", 1e-12, minimum=0.0),
        act=read_act(config, "hidden_act", "gelu"),
        bidirectional=True,
        token_types=integer(config, "type_vocab_size", 1, minimum=0),
        qkv_bias=True,
        output_bias=True,
    )


def _mlp(m: Builder, c: DecoderConfig, x: Value, at: str) -> Value:
    up, gate = packed_encoder.packed(m, x, f"{at}.up_gate_proj", 2, c.intermediate)
    return packed_encoder.gated_mlp(m, c, gate, up, f"{at}.down_proj", bias=True)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    x = layer_norm(m, c, packed_encoder.typed_tokens(m, c, "embeddings"), "embeddings.LayerNorm")
    return packed_encoder.layers(m, c, x, _NAMES, _mlp)
