"""OLMo 2: norms after attention and MLP, and over all queries and keys."""

from __future__ import annotations

from headrace.weights.gguf.architecture import ATTENTION, HEAD_NORMS, MLP, TOP, Architecture

ARCHITECTURES = (
    Architecture(
        name="olmo2",
        model_types=("olmo2",),
        top=TOP,
        block=ATTENTION
        | HEAD_NORMS
        | MLP
        | {
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
)
