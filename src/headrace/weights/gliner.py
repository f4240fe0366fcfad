"""What the gliner_config.json of a GLiNER checkpoint says: its encoder, its head, how labels and text are
written.

After GLiNER (Zaratiana et al. 2023) and its token-level kind (Stepanov and Shtopko 2024); field names and
defaults are those of the package `gliner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config, boolean, find, integer, text
from headrace.weights.tensor_file import TensorInfo

GLINER = "gliner_config.json"
ENCODER = "token_rep_layer.bert_layer.model."
"""What the names of the encoder's tensors begin with."""

SubtokenPooling = Literal["first", "last", "mean", "max"]
_POOLINGS: dict[str, SubtokenPooling] = {"first": "first", "last": "last", "mean": "mean", "max": "max"}
_SPAN_LEVEL, _TOKEN_LEVEL = "markerV0", ("token_level", "token-level")
# Fields that name parts which are not computed here, with what they stand for.
_OTHER_PARTS = {
    "labels_encoder": "an encoder of its own for labels (bi-encoder)",
    "labels_decoder": "a decoder that generates labels",
    "relations_layer": "relations",
    "triples_layer": "relations",
    "fuse_layers": "the sum of all layers",
    "post_fusion_schema": "attention between labels and words",
    "span_encoder_config": "an encoder of spans",
    "represent_spans": "spans scored after tokens",
    "precomputed_prompts_mode": "labels that were computed beforehand",
}


# Encoders that configs only name, by their published sizes: layers, hidden, heads, intermediate, vocabulary.
_DEBERTA_V3 = {
    "microsoft/deberta-v3-xsmall": (12, 384, 6, 1536, 128_100),
    "microsoft/deberta-v3-small": (6, 768, 12, 3072, 128_100),
    "microsoft/deberta-v3-base": (12, 768, 12, 3072, 128_100),
    "microsoft/deberta-v3-large": (24, 1024, 16, 4096, 128_100),
    "microsoft/mdeberta-v3-base": (12, 768, 12, 3072, 251_000),
}
_DEBERTA_V3_COMMON: Config = {
    "model_type": "deberta-v2",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "pad_token_id": 0,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
}
_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_TOKEN_TABLE = "embeddings.word_embeddings.weight"


class GlinerSettings(Struct, frozen=True, kw_only=True):
    """`hidden` is the size of the head's states, `longest_span` and `longest_text` are in words.

    A word's state is that of its first subtoken, its last, or their mean or maximum. With `marks_labels` a
    label's state is that of its mark, otherwise that of the token after it.
    """

    level: Literal["span", "token"]
    hidden: int
    longest_span: int
    longest_text: int
    lstm_layers: int
    label_mark: str
    text_mark: str
    subtokens: SubtokenPooling
    marks_labels: bool


def gliner_settings(config: Config) -> GlinerSettings:
    """The settings in a gliner_config.json; UnsupportedModel, by field, for what is not computed here."""
    for field, what in _OTHER_PARTS.items():
        if find(config, field):
            raise UnsupportedModel(f"{GLINER}: {field} stands for {what}, which is not supported")
    mode = text(config, "span_mode", _SPAN_LEVEL)
    if mode != _SPAN_LEVEL and mode not in _TOKEN_LEVEL:
        raise UnsupportedModel(
            f"{GLINER}: span_mode is {mode[:40]!r}: supported are {_SPAN_LEVEL} and {_TOKEN_LEVEL[0]}"
        )
    splitter = text(config, "words_splitter_type", "whitespace")
    if splitter != "whitespace":
        raise UnsupportedModel(
            f"{GLINER}: words_splitter_type is {splitter[:40]!r}: supported is 'whitespace'"
        )
    pooling = text(config, "subtoken_pooling", "first")
    if pooling not in _POOLINGS:
        raise UnsupportedModel(
            f"{GLINER}: subtoken_pooling is {pooling[:40]!r}: supported are {', '.join(_POOLINGS)}"
        )
    return GlinerSettings(
        level="span" if mode == _SPAN_LEVEL else "token",
        hidden=integer(config, "hidden_size", 512, maximum=1 << 16),
        longest_span=integer(config, "max_width", 12, maximum=1 << 10),
        longest_text=integer(config, "max_len", 384),
        lstm_layers=integer(config, "num_rnn_layers", 1, minimum=0, maximum=16),
        label_mark=text(config, "ent_token", "<<ENT>>"),
        text_mark=text(config, "sep_token", "<<SEP>>"),
        subtokens=_POOLINGS[pooling],
        marks_labels=boolean(config, "embed_ent_token", True),
    )


def encoder_config(config: Config, beside: Config | None) -> Config:
    """The config of the encoder, as its config.json would have it: `encoder_config`, or the file `beside`
    gliner_config.json, or that of a DeBERTa v3 which is named.

    UnsupportedModel where another one is only named, and would have to be fetched from elsewhere.
    """
    given = find(config, "encoder_config")
    if given is not None and not isinstance(given, dict):
        raise CorruptFile(f"{GLINER} has an encoder_config that is not an object: fetch it again")
    found = cast("Config | None", given) or beside
    name = text(config, "model_name", "microsoft/deberta-v3-small")
    if not found or (found is beside and "hidden_size" not in found):
        found = _published(name)
        if not found:
            raise UnsupportedModel(
                f"{GLINER} only names its encoder, {name[:120]!r}, and has no encoder_config: put the "
                "config.json of that encoder into the folder"
            )
    size = find(config, "vocab_size")
    resized = {"vocab_size": size} if isinstance(size, int) and size > 0 else {}
    kept = {field: value for field, value in found.items() if field not in ("architectures", "vocab_size")}
    return {"model_type": "deberta-v2", "vocab_size": found.get("vocab_size"), **kept, **resized}


def _published(name: str) -> Config | None:
    sizes = _DEBERTA_V3.get(name)
    return None if sizes is None else _DEBERTA_V3_COMMON | dict(zip(_SIZES, sizes, strict=True))


def with_vocabulary(config: Config, gliner: Config, tensors: Mapping[str, TensorInfo]) -> Config:
    """The encoder's config with as many tokens as its table has, where the settings do not say it: GLiNER
    adds its marks to the vocabulary, and resizes the table to the tokenizer's."""
    size, table = find(gliner, "vocab_size"), tensors.get(_TOKEN_TABLE)
    if table is None or not table.shape or (isinstance(size, int) and size > 0):
        return config
    return config | {"vocab_size": table.shape[0]}


def encoder_tensors(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The encoder's tensors by the names that its own checkpoint has. Those of the head are left out, which
    `gliner_head` reads, all of them."""
    return {name.removeprefix(ENCODER): info for name, info in tensors.items() if name.startswith(ENCODER)}
