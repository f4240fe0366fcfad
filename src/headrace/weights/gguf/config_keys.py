"""The config of a Hugging Face checkpoint and the metadata keys of a GGUF file, in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.config_json import Config, integer, number
from headrace.weights.gguf.architecture import LAYER_NORM_KEY, RMS_NORM_KEY, Architecture, ConfigField
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.gguf.reader import corrupt_metadata
from headrace.weights.gguf.rope_keys import rope_keys, rope_parameters_of, rope_table
from headrace.weights.tensor_file import TensorInfo

# Keys (after the architecture's name) that change what a model computes, and what they make of it.
_REFUSED = {
    "expert_count": "a mixture of experts",
    "attention.scale": "its own attention scale",
    "attention.max_alibi_bias": "ALiBi",
    "attention.clamp_kqv": "clamped queries, keys and values",
    "attention.sliding_window": "a sliding window",
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "logit_scale": "scaled logits",
    "embedding_scale": "scaled embeddings",
    "residual_scale": "scaled residuals",
}
_SIZES = (
    ConfigField("hidden_size", "embedding_length"),
    ConfigField("num_hidden_layers", "block_count"),
    ConfigField("max_position_embeddings", "context_length"),
)
_HEADS, _KEY_HEADS = "attention.head_count", "attention.head_count_kv"
_KEY_LENGTH, _VALUE_LENGTH, _ROTATED = (
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
)
_ATTENTION_SIZES = (
    ConfigField("num_attention_heads", _HEADS),
    ConfigField("num_key_value_heads", _KEY_HEADS),
    ConfigField("intermediate_size", "feed_forward_length"),
)
_CAUSAL, _POOLING = "attention.causal", "pooling_type"
_MEAN = 1  # of llama.cpp's enum llama_pooling_type
_SAMPLING = {
    "temperature": "sampling.temp",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "repetition_penalty": "sampling.penalty_repeat",
}


def config_of(
    metadata: Mapping[str, object],
    architecture: Architecture,
    tensors: Mapping[str, TensorInfo],
    file: str,
) -> Config:
    """The fields of config.json; `tensors` are by Hugging Face name."""
    keys = MetadataKeys(metadata, architecture.name, file)
    for key, what in _REFUSED.items():
        if not architecture.minds(key) and keys.number(key, 0.0):
            raise UnsupportedModel(
                f"{file} is a {architecture.name} with {what} ({key}), which is not supported"
            )
    table = tensors.get(f"{architecture.top['token_embd']}.weight")
    if table is None or len(table.shape) != 2:
        raise CorruptFile(f"{file} has no matrix 'token_embd.weight': fetch the whole model again")
    first = f"{architecture.layers}.0."
    config = {field.name: _value(keys, field) for field in _SIZES}
    config |= _attention_sizes(keys, architecture) if architecture.has_attention else {}
    config |= {
        "model_type": architecture.model_types[0],
        "vocab_size": table.shape[0],
        architecture.epsilon[0]: keys.number(RMS_NORM_KEY if keys.has(RMS_NORM_KEY) else LAYER_NORM_KEY),
        "tie_word_embeddings": f"{architecture.top['output']}.weight" not in tensors,
        "rope_parameters": rope_parameters_of(keys, architecture),
    }
    for field, name in architecture.biases.items():
        if name in architecture.block:
            config[field] = f"{first}{architecture.block[name]}.bias" in tensors
    config |= {field: first + name in tensors for field, name in architecture.forms.items()}
    config |= {field.name: _value(keys, field) for field in architecture.fields}
    config["num_hidden_layers"] = predicting_blocks(keys).start
    return config | _encoder(keys) | architecture.read(keys, config)


def predicting_blocks(keys: MetadataKeys) -> range:
    """The last blocks of a file, which predict further tokens and are no layers of the model."""
    count, predicting = keys.integer("block_count"), keys.integer("nextn_predict_layers", 0)
    if predicting >= count:
        raise corrupt_metadata(
            keys.file, f"{keys.prefix}.nextn_predict_layers", predicting, f"fewer than the {count:,} blocks"
        )
    return range(count - predicting, count)


def metadata_of(config: Config, architecture: Architecture) -> dict[str, object]:
    """The reverse: the keys of a checkpoint's config. UnsupportedModel where a setting has no key in GGUF."""
    keys: dict[str, object] = {}
    epsilon = ConfigField(*architecture.epsilon, "number")
    for field in (*_SIZES, *_ATTENTION_SIZES, *architecture.fields, epsilon):
        value = config.get(architecture.aliases.get(field.name, field.name), config.get(field.name))
        if isinstance(value, int | float):
            keys[field.key] = float(value) if field.kind == "number" else value
    if config.get("use_sliding_window") is False:
        keys.pop("attention.sliding_window", None)
    if architecture.has_attention:
        keys |= _attention_keys(config, keys) | rope_keys(config)
    if config.get("is_causal") is False:
        keys |= {_CAUSAL: False, _POOLING: _MEAN}
    keys |= architecture.write(config)
    return {
        "general.architecture": architecture.name,
        **{f"{architecture.name}.{key}": value for key, value in keys.items()},
    }


def _encoder(keys: MetadataKeys) -> Config:
    """What makes an encoder of an architecture of decoders: tokens that see all others, and their mean."""
    if keys.flag(_CAUSAL, True):
        return {}
    if keys.integer(_POOLING, _MEAN) != _MEAN:
        raise UnsupportedModel(
            f"{keys.file} has {_POOLING} {keys.integer(_POOLING)}: of encoders in GGUF the mean ({_MEAN}) is "
            "supported; use the model's folder"
        )
    return {"is_causal": False}


def generation_config_of(metadata: Mapping[str, object], file: str) -> Config | None:
    """The recommended sampling parameters, under their names in generation_config.json."""
    keys = MetadataKeys(metadata, "general", file)
    found = {name: keys.number(key, math.nan) for name, key in _SAMPLING.items()}
    given: Config = {name: value for name, value in found.items() if not math.isnan(value)}
    if "top_k" in given:
        given["top_k"] = keys.integer(_SAMPLING["top_k"])
    return given or None


def sampling_keys(generation_config: Mapping[str, object]) -> dict[str, object]:
    """The reverse."""
    keys: dict[str, object] = {}
    for name, key in _SAMPLING.items():
        value = generation_config.get(name)
        if isinstance(value, int if name == "top_k" else int | float):
            keys[f"general.{key}"] = value if name == "top_k" else float(cast(float, value))
    return keys


def _value(keys: MetadataKeys, field: ConfigField) -> object:
    default = 0 if field.nullable else field.default
    if field.kind == "flag":
        return keys.flag(field.key, bool(default))
    if field.kind == "number":
        value = keys.number(field.key, default)
    else:
        value = keys.integer(field.key, None if default is None else int(default))
    return None if field.nullable and not value else value


def _attention_sizes(keys: MetadataKeys, architecture: Architecture) -> Config:
    hidden, heads = keys.integer("embedding_length"), keys.integer(_HEADS, 0)
    if not heads:
        raise corrupt_metadata(keys.file, f"{keys.prefix}.{_HEADS}", 0, "a positive integer")
    head_dim = keys.integer(_KEY_LENGTH, hidden // heads)
    share = architecture.rotary_share
    for key in (_VALUE_LENGTH, _ROTATED):
        minded = architecture.minds(key) or (key == _ROTATED and share is not None)
        if not minded and keys.integer(key, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{keys.file} has {key} {keys.integer(key)} for heads of {head_dim}: not supported"
            )
    sizes: Config = {
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer(_KEY_HEADS, heads),
        "head_dim": head_dim,
        "intermediate_size": keys.integer("feed_forward_length"),
    }
    return sizes if share is None else sizes | {share: keys.integer(_ROTATED, head_dim) / head_dim}


def _attention_keys(config: Config, keys: Mapping[str, object]) -> dict[str, object]:
    hidden, heads = cast(int, keys["embedding_length"]), cast(int, keys[_HEADS])
    head_dim = integer(config, "head_dim", hidden // heads)
    share = number(rope_table(config), "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    return {
        "feed_forward_length": keys.get("feed_forward_length", 4 * hidden),
        _KEY_HEADS: keys.get(_KEY_HEADS, heads),
        _KEY_LENGTH: head_dim,
        _VALUE_LENGTH: head_dim,
        _ROTATED: int(head_dim * share),
        "context_length": keys.get("context_length", 2048),
    }
