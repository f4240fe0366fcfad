"""GPT-2, and what was built after it with layer norms and biases: GPT-NeoX, Falcon (7b), StarCoder 2."""

from __future__ import annotations

from typing import cast

from headrace.errors import UnsupportedModel
from headrace.weights.config_json import Config, integer, number
from headrace.weights.gguf.architecture import (
    ATTENTION,
    LAYER_NORM_KEY,
    PRE_NORMS,
    SLIDING_WINDOW,
    TOP,
    Architecture,
    ConfigField,
)
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.rope_keys import rope_table
from headrace.weights.row_order import RowOrder


def _read_gpt2(keys: MetadataKeys, fields: Config) -> Config:
    return {"transposed_weights": False, "activation_function": "gelu_new"}


def _read_gpt_neox(keys: MetadataKeys, fields: Config) -> Config:
    rope = cast(Config, fields["rope_parameters"])
    return {"rotary_emb_base": rope["rope_theta"], "hidden_act": "gelu"}


def _write_gpt_neox(config: Config) -> dict[str, object]:
    if config.get("hidden_act", "gelu") != "gelu":
        raise UnsupportedModel(
            f"the activation {config['hidden_act']!r} has no key in GGUF: write safetensors instead"
        )
    head_dim = integer(config, "hidden_size") // integer(config, "num_attention_heads")
    share = number(rope_table(config), "partial_rotary_factor", number(config, "rotary_pct", 0.25))
    return {"rope.dimension_count": int(head_dim * share)}


def _read_falcon(keys: MetadataKeys, fields: Config) -> Config:
    if (heads := fields["num_key_value_heads"]) != 1:
        raise UnsupportedModel(
            f"{keys.file} is a falcon with {heads} key heads, which is not supported: use 7b, which has one"
        )
    return {
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "alibi": False,
        "ffn_hidden_size": fields["intermediate_size"],
    }


def _write_falcon(config: Config) -> dict[str, object]:
    return {"attention.head_count_kv": 1} if config.get("multi_query") else {}


def _read_starcoder2(keys: MetadataKeys, fields: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh"}


ARCHITECTURES = (
    Architecture(
        name="gpt2",
        model_types=("gpt2",),
        top={
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        block={
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        layers="transformer.h",
        aliases={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "max_position_embeddings": "n_positions",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
        },
        epsilon=("layer_norm_epsilon", LAYER_NORM_KEY),
        read=_read_gpt2,
    ),
    Architecture(
        name="gptneox",
        model_types=("gpt_neox",),
        top={
            "token_embd": "gpt_neox.embed_in",
            "output_norm": "gpt_neox.final_layer_norm",
            "output": "embed_out",
        },
        block=PRE_NORMS
        | {
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        layers="gpt_neox.layers",
        rows=RowOrder.THREE_STACKS,
        reordered=("attention.query_key_value",),
        fields=(ConfigField("use_parallel_residual", "use_parallel_residual", "flag", True),),
        biases={"attention_bias": "attn_qkv"},
        epsilon=("layer_norm_eps", LAYER_NORM_KEY),
        rotary_share="rotary_pct",
        read=_read_gpt_neox,
        write=_write_gpt_neox,
    ),
    Architecture(
        name="falcon",
        model_types=("falcon",),
        top={
            "token_embd": "transformer.word_embeddings",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        block={
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
            "ffn_up": "mlp.dense_h_to_4h",
            "ffn_down": "mlp.dense_4h_to_h",
        },
        layers="transformer.h",
        aliases={"intermediate_size": "ffn_hidden_size"},
        biases={"bias": "attn_qkv"},
        epsilon=("layer_norm_epsilon", LAYER_NORM_KEY),
        read=_read_falcon,
        write=_write_falcon,
    ),
    Architecture(
        name="starcoder2",
        model_types=("starcoder2",),
        top=TOP,
        block=ATTENTION | PRE_NORMS | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        fields=(SLIDING_WINDOW,),
        biases={"use_bias": "attn_q"},
        epsilon=("norm_epsilon", LAYER_NORM_KEY),
        read=_read_starcoder2,
    ),
)
