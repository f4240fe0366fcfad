"""NomicBERT (Nussbaum et al. 2024, nomic-embed-text): BERT with rotary positions, a gated MLP and no biases.

Its own config has the names of GPT-2's fields (`n_embd`), and says more than the one of `transformers`.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import packed_encoder
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig, read_act, read_decoder
from headrace.models.packed_encoder import LayerNames
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, find, integer, number, text

LOG = logging.getLogger("headrace.models")
_NAMES = LayerNames("encoder.layers", "attn.Wqkv", "attn.out_proj", "norm1", "norm2")
_REFUSED = {
    "prenorm": "norms before attention and MLP",
    "parallel_block": "attention and MLP side by side",
    "use_rms_norm": "RMS norms",
    "causal": "causal attention",
    "rotary_emb_interleaved": "rotation of neighboring pairs",
    "scale_attn_by_inverse_layer_idx": "scores scaled by layer",
}


def read_config(config: Config) -> DecoderConfig:
    old = find(config, "rotary_emb_base") is not None
    if old:
        _refuse_variants(config)
        config = config | {
            "max_position_embeddings": _context(config),
            "rope_parameters": {"rope_theta": number(config, "rotary_emb_base", minimum=1.0)},
        }
    c = read_decoder(config)
    return replace(
        c,
        eps=number(config, "layer_norm_eps", 1e-12, minimum=0.0),
        act=_act(config) if old else read_act(config, "hidden_act"),
        bidirectional=True,
        token_types=integer(config, "type_vocab_size", 2, minimum=0),
        qkv_bias=old and boolean(config, "qkv_proj_bias", True),
        output_bias=old and boolean(config, "qkv_proj_bias", True),
        mlp_bias=old and boolean(config, "mlp_fc1_bias", True),
    )


def _refuse_variants(config: Config) -> None:
    for field, what in _REFUSED.items():
        if boolean(config, field, False):
            raise UnsupportedModel(f"config.json: {field} stands for {what}, which is not supported")
    if integer(config, "num_experts", 0, minimum=0) and integer(config, "moe_every_n_layers", 0, minimum=0):
        raise UnsupportedModel(
            "config.json: moe_every_n_layers stands for a mixture of experts (nomic-embed-text-v2-moe), which"
            " is not supported: use nomic-embed-text-v1.5"
        )
    share = number(config, "rotary_emb_fraction", 0.0)
    if share != 1 or number(config, "rotary_emb_scale_base", 0.0):
        raise UnsupportedModel(
            f"config.json: rotary_emb_fraction {share:g} or rotary_emb_scale_base is not supported: whole"
            " heads rotate, by plain frequencies"
        )
    if boolean(config, "mlp_fc1_bias", True) != boolean(config, "mlp_fc2_bias", True):
        raise UnsupportedModel("config.json: mlp_fc1_bias other than mlp_fc2_bias is not supported")


def _context(config: Config) -> int:
    """`n_positions`. Beyond `max_trained_positions` each length has frequencies of its own where
    `rotary_scaling_factor` is set, so the context ends there.
    """
    longest = integer(config, "n_positions", integer(config, "max_position_embeddings"), maximum=1 << 30)
    trained = integer(config, "max_trained_positions", 2048)
    if not number(config, "rotary_scaling_factor", 0.0) or longest <= trained:
        return longest
    LOG.warning("rotary_scaling_factor is not applied: the context ends at %s tokens", f"{trained:,}")
    return trained


def _act(config: Config) -> str:
    named = text(config, "activation_function", "gelu")
    if named not in ("swiglu", "geglu"):
        raise UnsupportedModel(
            f"config.json: activation_function '{named:.40}' is not supported; known: swiglu, geglu"
        )
    return "silu" if named == "swiglu" else "gelu"


def _mlp(m: Builder, c: DecoderConfig, x: Value, at: str) -> Value:
    up, gate = (project(m, x, f"{at}.{name}", c.intermediate, bias=c.mlp_bias) for name in ("fc11", "fc12"))
    return packed_encoder.gated_mlp(m, c, gate, up, f"{at}.fc2", bias=c.mlp_bias)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    x = layer_norm(m, c, packed_encoder.typed_tokens(m, c, "embeddings"), "emb_ln")
    return packed_encoder.layers(m, c, x, _NAMES, _mlp)
