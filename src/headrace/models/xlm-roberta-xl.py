"""XLM-RoBERTa-XL (Goyal et al. 2021): XLM-RoBERTa with norms before attention and MLP, and one at the end."""

from __future__ import annotations

from headrace.models import bert, blocks
from headrace.models.blocks import layer_norm
from headrace.models.decoder_config import DecoderConfig
from headrace.models.roberta import read_config
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.value import Value

__all__ = ["encode", "read_config"]


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    x = bert.embeddings(m, c, "roberta.embeddings", c.hidden)
    for layer in range(c.layers):
        at = f"roberta.encoder.layer.{layer}"
        y = layer_norm(m, c, x, f"{at}.attention.self_attn_layer_norm")
        x = add(x, bert.attention(m, c, layer, y, f"{at}.attention"))
        y = layer_norm(m, c, x, f"{at}.LayerNorm")
        x = add(x, blocks.mlp(m, c, y, f"{at}.intermediate.dense", f"{at}.output.dense"))
    return layer_norm(m, c, x, "roberta.encoder.LayerNorm")
