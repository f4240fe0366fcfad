"""What the config.json of a GLiNER 2 checkpoint says, and that of its encoder beside it.

After GLiNER2 (Zaratiana et al. 2025); field names and defaults are those of the package `gliner2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config, find, integer, text
from headrace.weights.gliner import SubtokenPooling, with_vocabulary
from headrace.weights.tensor_file import TensorInfo

GLINER2_TYPE = "extractor"
"""The `model_type` in config.json."""
ENCODER_CONFIG = "encoder_config/config.json"
GLINER2_ENCODER = "encoder."
"""What the names of the encoder's tensors begin with."""
CountingLayer = Literal["count_lstm", "count_lstm_v2"]
_COUNTING: dict[str, CountingLayer] = {"count_lstm": "count_lstm", "count_lstm_v2": "count_lstm_v2"}
_POOLINGS: dict[str, SubtokenPooling] = {"first": "first", "mean": "mean", "max": "max"}


class Gliner2Settings(Struct, frozen=True, kw_only=True):
    """`longest_span` and `longest_text` (None: any) are in words. `counting` says how labels become what
    spans are compared with."""

    longest_span: int
    longest_text: int | None
    counting: CountingLayer
    subtokens: SubtokenPooling


def is_gliner2_config(config: Config) -> bool:
    """Whether a config.json is that of a GLiNER 2 checkpoint."""
    return config.get("model_type") == GLINER2_TYPE


def gliner2_settings(config: Config) -> Gliner2Settings:
    """The settings in its config.json; UnsupportedModel, by field, for what is not computed here."""
    kind = text(config, "architecture", "span")
    if kind != "span":
        raise UnsupportedModel(
            f"config.json: architecture is {kind[:40]!r}: of GLiNER 2 'span' is supported, as the models"
            " fastino/gliner2-base-v1 and -large-v1 have it"
        )
    counting = text(config, "counting_layer", "count_lstm")
    if counting not in _COUNTING:
        raise UnsupportedModel(
            f"config.json: counting_layer is {counting[:40]!r}: supported are {', '.join(_COUNTING)}"
        )
    pooling = text(config, "token_pooling", "first")
    if pooling not in _POOLINGS:
        raise UnsupportedModel(
            f"config.json: token_pooling is {pooling[:40]!r}: supported are {', '.join(_POOLINGS)}"
        )
    longest = find(config, "max_len")
    return Gliner2Settings(
        longest_span=integer(config, "max_width", 8, maximum=1 << 10),
        longest_text=None if longest is None else integer(config, "max_len"),
        counting=_COUNTING[counting],
        subtokens=_POOLINGS[pooling],
    )


def gliner2_encoder(config: Config, beside: Config | None) -> Config:
    """The config of the encoder, from the file `beside` config.json; UnsupportedModel where it is missing, as
    it would have to be fetched from elsewhere."""
    gliner2_settings(config)  # what is not supported is said first
    if beside is None:
        raise UnsupportedModel(
            f"this GLiNER 2 checkpoint has no {ENCODER_CONFIG}: fetch the whole model again, or put the"
            " config.json of its encoder there"
        )
    return {name: value for name, value in beside.items() if name != "architectures"}


def gliner2_tensors(
    config: Config, tensors: Mapping[str, TensorInfo]
) -> tuple[Config, dict[str, TensorInfo]]:
    """The encoder's config with as many tokens as its table has, and its tensors by the names that its own
    checkpoint has. Those of the head are left out, which `gliner2_head` reads, all of them."""
    own = {
        name.removeprefix(GLINER2_ENCODER): info
        for name, info in tensors.items()
        if name.startswith(GLINER2_ENCODER)
    }
    if not own:
        raise CorruptFile(f"the GLiNER 2 checkpoint has no tensors {GLINER2_ENCODER}*: fetch it again")
    return with_vocabulary(config, {}, own), own
