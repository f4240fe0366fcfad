"""From the metadata of a GGUF file to the config of a Hugging Face checkpoint."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.gguf.families import FAMILIES
from headrace.weights.gguf.keys import MetadataKeys
from headrace.weights.gguf.reader import corrupt_metadata
from headrace.weights.gguf.tensor_names import ARCHITECTURES, MIXTRAL, Architecture
from headrace.weights.tensor_file import TensorInfo

# Tensors that belong to the config: divisors of the rotary frequencies.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
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
    "nextn_predict_layers": "layers that predict further tokens",
}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def architecture_of(metadata: Mapping[str, object], file: str) -> Architecture:
    """The architecture of a file; UnsupportedModel names it, the nearest and the known ones."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise corrupt_metadata(file, "general.architecture", name, "the name of an architecture")
    if name not in ARCHITECTURES:
        nearest = difflib.get_close_matches(name[:60], ARCHITECTURES, 1, cutoff=0)[0]
        raise UnsupportedModel(
            f"{file} holds the architecture {name[:60]!r}, which is not supported as GGUF; the nearest that "
            f"is: {nearest!r}; known: {', '.join(ARCHITECTURES)}"
        )
    if name == MIXTRAL.name and MetadataKeys(metadata, name, file).integer("expert_count", 0):
        return MIXTRAL
    return ARCHITECTURES[name]


def config_of(
    metadata: Mapping[str, object],
    architecture: Architecture,
    tensors: Mapping[str, TensorInfo],
    file: str,
) -> dict[str, object]:
    """The fields of config.json; `tensors` are by Hugging Face name."""
    keys, family = MetadataKeys(metadata, architecture.name, file), FAMILIES[architecture.name]
    for key, what in _REFUSED.items():
        if key not in family.known and keys.number(key, 0.0):
            raise UnsupportedModel(
                f"{file} is a {architecture.name} with {what} ({key}), which is not supported"
            )
    table = tensors.get(f"{architecture.top['token_embd']}.weight")
    if table is None or len(table.shape) != 2:
        raise CorruptFile(f"{file} has no matrix 'token_embd.weight': fetch the whole model again")
    epsilon = "attention.layer_norm_rms_epsilon"
    biased = ("self_attn.q_proj", "attention.query_key_value", "self_attention.query_key_value")
    config = _sizes(keys, family.known) | {
        "model_type": architecture.model_type,
        "vocab_size": table.shape[0],
        family.eps: keys.number(epsilon if keys.has(epsilon) else "attention.layer_norm_epsilon"),
        "tie_word_embeddings": f"{architecture.top['output']}.weight" not in tensors,
        "attention_bias": any(f"{architecture.layers}.0.{name}.bias" in tensors for name in biased),
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
        "use_bias": f"{architecture.layers}.0.mixer.in_proj.bias" in tensors,
        "use_conv_bias": f"{architecture.layers}.0.mixer.conv1d.bias" in tensors,
        "rope_parameters": _rope(keys, family.known),
    }
    return config | family.read(keys, config)


def rope_with_factors(
    config: Mapping[str, object], factors: Mapping[str, NDArray[np.float32]], attention: float, file: str
) -> dict[str, object]:
    """`rope_parameters` with one divisor per frequency: of Llama 3's scaling (ROPE_FACTORS), or two sets for
    short and long contexts (longrope), with which goes `attention`, the factor of the scores' root."""
    rope = cast("dict[str, object]", config["rope_parameters"])
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


def generation_config_of(metadata: Mapping[str, object], file: str) -> dict[str, object] | None:
    """The recommended sampling parameters, under their names in generation_config.json."""
    keys = MetadataKeys(metadata, "general", file)
    found = {name: keys.number(f"sampling.{key}", math.nan) for key, name in _SAMPLING.items()}
    given: dict[str, object] = {name: value for name, value in found.items() if not math.isnan(value)}
    if "top_k" in given:
        given["top_k"] = keys.integer("sampling.top_k")
    return given or None


def _sizes(keys: MetadataKeys, known: frozenset[str]) -> dict[str, object]:
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count", 0)
    common: dict[str, object] = {
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer("block_count"),
        "max_position_embeddings": keys.integer("context_length"),
    }
    if keys.has("ssm.inner_size"):  # no attention
        return common
    if not heads:
        raise corrupt_metadata(keys.file, f"{keys.prefix}.attention.head_count", 0, "a positive integer")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if key not in known and keys.integer(key, head_dim) != head_dim:
            raise UnsupportedModel(
                f"{keys.file} has {key} {keys.integer(key)} for heads of {head_dim}: not supported"
            )
    return common | {
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": keys.integer("feed_forward_length"),
    }


def _rope(keys: MetadataKeys, known: frozenset[str]) -> dict[str, object]:
    table: dict[str, object] = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base", 10000.0)}
    kind = keys.metadata.get(f"{keys.prefix}.rope.scaling.type", "none")
    attention = "rope.scaling.attn_factor"
    if attention not in known and keys.number(attention, 1.0) != 1.0:
        raise UnsupportedModel(f"{keys.file} scales attention with its rope (attn_factor): not supported")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"{keys.file} has the rope scaling {kind!r:.40}: supported as GGUF are none, linear, yarn"
        )
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "yarn":
        context = keys.integer("rope.scaling.original_context_length", keys.integer("context_length"))
        return table | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": context,
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    if kind == "linear" or factor not in (0.0, 1.0):
        return table | {"rope_type": "linear", "factor": factor}
    return table
