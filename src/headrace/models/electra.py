"""ELECTRA: BERT whose embeddings may be narrower than its layers."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.models import bert
from headrace.models.blocks import layer_norm, project
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, integer


def read_config(config: Config) -> DecoderConfig:
    c = bert.read_absolute(config)
    return replace(c, embedding=integer(config, "embedding_size", c.hidden))


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    at = "electra.embeddings"
    x = layer_norm(m, c, bert.embeddings(m, c, at, c.embedding), f"{at}.LayerNorm")
    if c.embedding != c.hidden:
        x = project(m, x, "electra.embeddings_project", c.hidden, bias=True)
    return bert.layers(m, c, x, "electra")
