"""RoBERTa: BERT whose position table starts behind the padding token's row, with one token type."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import bert
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.builder import Builder
from headrace.ops.value import Value
from headrace.weights.config_json import Config, integer


def read_config(config: Config) -> DecoderConfig:
    return after_padding(bert.read_absolute(config), integer(config, "pad_token_id", 1, minimum=0))


def after_padding(c: DecoderConfig, padding: int) -> DecoderConfig:
    """The config where the first token's position is `padding` + 1, as in fairseq."""
    first = padding + 1
    if c.context <= first:
        raise UnsupportedModel(
            f"config.json: max_position_embeddings {c.context} leaves no position after"
            f" pad_token_id {padding}"
        )
    return replace(c, context=c.context - first, first_position=first)


def encode(m: Builder, c: DecoderConfig) -> Value:
    """Hidden states [T, hidden] of all tokens."""
    return bert.encode(m, c, "roberta")
