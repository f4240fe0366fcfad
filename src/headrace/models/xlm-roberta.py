"""XLM-RoBERTa: RoBERTa trained on 100 languages (BGE-M3, multilingual E5). Jina's checkpoints have its name,
but other layers.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import jina_embeddings_v3, roberta
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, find, text


def read_config(config: Config) -> DecoderConfig:
    if text(config, "position_embedding_type", "absolute") == "rotary":
        return jina_embeddings_v3.read_config(config)
    c = roberta.read_config(config)
    # Only Jina's config class has this field; queries, keys and values are then one matrix.
    jina = find(config, "use_flash_attn") is not None
    return replace(c, qkv_bias=jina, output_bias=jina)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    return jina_embeddings_v3.encode(m, c) if c.qkv_bias else roberta.encode(m, c)
