"""Phi 3: joined projections, and heads of which a part rotates."""

from __future__ import annotations

from headrace.weights.config_json import Config, integer
from headrace.weights.gguf.architecture import PRE_NORMS, SLIDING_WINDOW, TOP, Architecture
from headrace.weights.gguf.metadata_keys import MetadataKeys

_ORIGINAL = "rope.scaling.original_context_length"


def _read(keys: MetadataKeys, fields: Config) -> Config:
    context = keys.integer(_ORIGINAL, keys.integer("context_length"))
    return {"original_max_position_embeddings": context}


def _write(config: Config) -> dict[str, object]:
    context = integer(config, "original_max_position_embeddings", 0, minimum=0)
    return {_ORIGINAL: context} if context else {}


ARCHITECTURES = (
    Architecture(
        name="phi3",
        model_types=("phi3",),
        top=TOP,
        block=PRE_NORMS
        | {
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        fields=(SLIDING_WINDOW,),
        rotary_share="partial_rotary_factor",
        known=frozenset({"rope.scaling.attn_factor"}),
        read=_read,
        write=_write,
    ),
)
