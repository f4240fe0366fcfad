"""The rotation of positions in GGUF files: its keys and its tensors of divisors, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config, find, integer, number, numbers
from headrace.weights.gguf.architecture import Architecture
from headrace.weights.gguf.metadata_keys import MetadataKeys

# Tensors that belong to the config: divisors of the rotary frequencies.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ATTENTION_FACTOR = "rope.scaling.attn_factor"
_BASE, _TYPE, _FACTOR = "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"
_ORIGINAL = "rope.scaling.original_context_length"
_YARN = {  # field: key, value where it is absent
    "beta_fast": ("rope.scaling.yarn_beta_fast", 32.0),
    "beta_slow": ("rope.scaling.yarn_beta_slow", 1.0),
}
_YARN_FACTORS = ("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor")


def rope_parameters_of(keys: MetadataKeys, architecture: Architecture) -> Config:
    """`rope_parameters` as a file's keys say, without divisors."""
    table: Config = {"rope_type": "default", "rope_theta": keys.number(_BASE, 10000.0)}
    kind = keys.metadata.get(f"{keys.prefix}.{_TYPE}", "none")
    if not architecture.minds(ATTENTION_FACTOR) and keys.number(ATTENTION_FACTOR, 1.0) != 1.0:
        raise UnsupportedModel(f"{keys.file} scales attention with its rope (attn_factor): not supported")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"{keys.file} has the rope scaling {kind!r:.40}: supported as GGUF are none, linear, yarn"
        )
    factor = keys.number(_FACTOR, keys.number("rope.scale_linear", 1.0))
    if kind == "yarn":
        for key in _YARN_FACTORS:
            if keys.number(key, 1.0) != 1.0:
                raise UnsupportedModel(f"{keys.file} has {key} = {keys.number(key)}, supported is 1 alone")
        context = keys.integer(_ORIGINAL, keys.integer("context_length"))
        betas = {field: keys.number(key, default) for field, (key, default) in _YARN.items()}
        scaled = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context}
        return table | scaled | betas
    if kind == "linear" or factor not in (0.0, 1.0):
        return table | {"rope_type": "linear", "factor": factor}
    return table


def rope_keys(config: Config) -> dict[str, object]:
    """The reverse: keys for the rotation of a config. UnsupportedModel for a scaling without keys."""
    table = rope_table(config)
    if "full_attention" in table:
        return {}  # by kind of layer: the architecture writes it
    theta = number(config, "rotary_emb_base", number(config, "rope_theta", 10000.0))
    return {_BASE: number(table, "rope_theta", theta)} | scaling_keys(table)


def scaling_keys(table: Config) -> dict[str, object]:
    """Keys for what `rope_parameters` say beside the base."""
    kind = table.get("rope_type", table.get("type", "default"))
    if kind in ("default", "llama3", "longrope", "divided"):  # the last three are tensors
        attention = table.get("attention_factor")
        return {ATTENTION_FACTOR: float(attention)} if isinstance(attention, float) else {}
    keys: dict[str, object] = {_TYPE: kind, _FACTOR: number(table, "factor")}
    if kind == "linear":
        return keys
    if kind != "yarn" or table.get("attention_factor") is not None:
        raise UnsupportedModel(
            f"the rope scaling {table!r:.100} has no keys in GGUF: write safetensors instead"
        )
    original = integer(table, "original_max_position_embeddings", maximum=1 << 30)
    betas = {key: number(table, field, default) for field, (key, default) in _YARN.items()}
    return keys | {_ORIGINAL: original} | betas


def rope_with_factors(
    config: Config, factors: Mapping[str, NDArray[np.float32]], attention: float, file: str
) -> Config:
    """`rope_parameters` with one divisor per frequency: of Llama 3's scaling (ROPE_FACTORS), or two sets for
    short and long contexts (longrope), with which goes `attention`, the factor of the scores' root."""
    rope = cast(Config, config["rope_parameters"])
    if rope["rope_type"] != "default" or len(factors) != (1 if ROPE_FACTORS in factors else 2):
        raise CorruptFile(
            f"{file} has the factors {', '.join(factors)} and another rope scaling, one expected: "
            "fetch it again"
        )
    lists = {name: [float(factor) for factor in values] for name, values in factors.items()}
    if ROPE_FACTORS in lists:
        return rope | {"rope_type": "divided", "divisors": lists[ROPE_FACTORS]}
    return rope | {
        "rope_type": "longrope",
        "long_factor": lists[LONG_FACTORS],
        "short_factor": lists[SHORT_FACTORS],
        "attention_factor": attention,
        "original_max_position_embeddings": config["original_max_position_embeddings"],
    }


def long_rope_factors(config: Config, rotary_dim: int) -> dict[str, NDArray[np.float32]]:
    """The reverse: the two lists of divisors of longrope by the names of their tensors; empty for others."""
    table = rope_table(config)
    if table.get("rope_type", table.get("type")) not in ("longrope", "su"):
        return {}
    names = {LONG_FACTORS: "long_factor", SHORT_FACTORS: "short_factor"}
    return {
        name: np.array(numbers(table, field, rotary_dim // 2, above=0), np.float32)
        for name, field in names.items()
    }


def rope_table(config: Config) -> Config:
    """`rope_scaling`, or `rope_parameters` as newer files call it; empty where there is neither."""
    return cast(Config, find(config, "rope_scaling") or find(config, "rope_parameters") or {})
