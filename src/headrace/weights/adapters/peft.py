"""Folders of PEFT: adapter_config.json and adapter_model.safetensors.

What else PEFT can put into an adapter (DoRA, biases, whole modules, tokens) is refused by its name.
https://github.com/huggingface/peft/blob/main/src/peft/tuners/lora/config.py
"""

from __future__ import annotations

import math
import re
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec

from headrace.errors import CorruptFile, InvalidRequest, ModelNotFound, UnsupportedModel
from headrace.tokenization.linear_pattern import MAX_CHARACTERS, compile_re2
from headrace.weights import strict_json
from headrace.weights.adapters.adapter_file import (
    MAX_RANK,
    AdapterFile,
    LoraMatrices,
    adapter_of,
    check_count,
)
from headrace.weights.config_json import Config, boolean, integer, number, text
from headrace.weights.confined import confined
from headrace.weights.safetensors.reader import SafetensorsFile
from headrace.weights.tensor_file import TensorInfo

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
MAX_PATTERNS = 256
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")

# Fields without an effect on what a trained adapter computes.
_WITHOUT_EFFECT = frozenset(
    [
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode"),
        *("peft_type", "peft_version", "target_modules", "exclude_modules", "lora_dropout"),
        *("layers_to_transform", "layers_pattern", "megatron_core", "fan_in_fan_out", "ensure_weight_tying"),
        *("lora_ga_config", "eva_config", "runtime_config", "r", "lora_alpha"),
        *("use_rslora", "rank_pattern", "alpha_pattern", "bias", "init_lora_weights"),
        "qalora_group_size",
    ]
)
# Ways to begin training that also change the base's weights.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_peft(folder: Path) -> AdapterFile:
    """The adapter in a folder. ModelNotFound, CorruptFile, UnsupportedModel."""
    try:
        config = strict_json.read_object(confined(folder, CONFIG), MAX_CONFIG_BYTES)
    except FileNotFoundError:
        raise ModelNotFound(
            f"{folder.name} has no {CONFIG}: give a folder of PEFT, or a GGUF adapter"
        ) from None
    _check_config(config)
    base = text(config, "base_model_name_or_path", "")
    try:
        file = SafetensorsFile(confined(folder, WEIGHTS))
    except FileNotFoundError:
        raise ModelNotFound(
            f"{folder.name} has no {WEIGHTS}: save the adapter as safetensors (pickles are never read)"
        ) from None
    except OSError as error:
        raise CorruptFile(f"{WEIGHTS} cannot be read: {error.strerror}") from None
    scales = _Scales(config)
    with closing(file):
        check_count(file.tensors, WEIGHTS)
        matrices = {
            f"{module}.weight": LoraMatrices(file.float32(a), file.float32(b), scales.of(module, a.shape[0]))
            for module, (a, b) in _pairs(file).items()
        }
    return adapter_of(base, matrices, folder.name)


def _pairs(file: SafetensorsFile) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """module -> (A, B), as they are stored."""
    halves: dict[str, dict[str, TensorInfo]] = {}
    for name, info in file.tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise _not_supported(name)
        halves.setdefault(found["module"].removeprefix(_PREFIX), {})[found["half"]] = info
    for module, pair in halves.items():
        if len(pair) != 2:
            raise CorruptFile(f"{WEIGHTS}: {module[:200]!r} has only one of lora_A and lora_B")
        for info in pair.values():
            if len(info.shape) != 2 or 0 in info.shape:
                raise UnsupportedModel(f"{WEIGHTS}: {module[:200]!r} is no linear layer")
            if min(info.shape) > MAX_RANK:
                raise UnsupportedModel(f"{WEIGHTS}: {module[:200]!r} has a rank over {MAX_RANK}")
    return {module: (pair["A"], pair["B"]) for module, pair in halves.items()}


def _not_supported(name: str) -> UnsupportedModel:
    if ".base_layer." in name:
        return UnsupportedModel(
            f"{WEIGHTS} holds {name[:200]!r}, a weight of the base: save the adapter with"
            " save_embedding_layers=False"
        )
    return UnsupportedModel(
        f"{WEIGHTS} holds {name[:200]!r}, which is no lora_A or lora_B of a linear layer: adapters of"
        " embeddings, DoRA's magnitudes, biases and whole modules are not supported"
    )


def _check_config(config: Config) -> None:
    kind = text(config, "peft_type", "")
    if kind.upper() != "LORA":
        raise UnsupportedModel(f"{CONFIG}: peft_type is {kind[:50]!r}: only LORA is supported")
    if boolean(config, "use_dora", False):
        raise UnsupportedModel(f"{CONFIG}: use_dora (DoRA) is not supported: train with use_dora=False")
    bias = text(config, "bias", "none")
    if bias != "none":
        raise UnsupportedModel(f"{CONFIG}: bias is {bias[:50]!r}: only 'none' is supported")
    how = config.get("init_lora_weights")
    if isinstance(how, str) and how.lower().startswith(_CHANGES_BASE):
        raise UnsupportedModel(
            f"{CONFIG}: init_lora_weights is {how[:50]!r}, which changes the base's weights too: save it with"
            " path_initial_model_for_weight_conversion"
        )
    for field, value in config.items():
        if field not in _WITHOUT_EFFECT and value not in (None, False, {}, [], ""):
            raise UnsupportedModel(
                f"{CONFIG}: {field[:100]} is {msgspec.json.encode(value).decode()[:100]}, which is not"
                " supported here"
            )


class _Scales:
    """alpha / rank, or with rank-stabilized LoRA alpha / sqrt(rank), of each module."""

    def __init__(self, config: Config) -> None:
        self._alpha = number(config, "lora_alpha", 8.0)
        self._rslora = boolean(config, "use_rslora", False)
        self._rank = integer(config, "r", 8, maximum=MAX_RANK)
        self._alphas = _Patterns(config, "alpha_pattern")
        self._ranks = _Patterns(config, "rank_pattern")

    def of(self, module: str, rank: int) -> float:
        expected = self._ranks.find(module, self._rank)
        if expected != rank:
            raise CorruptFile(
                f"{WEIGHTS}: {module[:200]!r} has the rank {rank}, {CONFIG} says {expected:g}: the files do"
                " not belong together"
            )
        alpha = self._alphas.find(module, self._alpha)
        return alpha / (math.sqrt(rank) if self._rslora else rank)


class _Patterns:
    """A number by module: of the first pattern that matches the end of its name, as PEFT does it. RE2
    searches, so that no pattern takes long."""

    def __init__(self, config: Config, field: str) -> None:
        given: object = config.get(field) or {}
        if not isinstance(given, dict):
            raise UnsupportedModel(f"{CONFIG}: {field} is no object of patterns")
        entries = cast("Config", given)
        if len(entries) > MAX_PATTERNS:
            raise UnsupportedModel(
                f"{CONFIG}: {field} has {len(entries):,}, at most {MAX_PATTERNS} patterns work"
            )

        def refused(cause: str) -> InvalidRequest:
            return InvalidRequest(f"{CONFIG}: {field} cannot be searched: {cause}")

        self._patterns: list[tuple[Any, float]] = []
        for pattern in entries:
            if len(pattern) > MAX_CHARACTERS:
                raise refused(f"a pattern has more than {MAX_CHARACTERS:,} characters")
            value = number({"value": entries[pattern]}, "value")
            self._patterns.append((compile_re2(rf"(?:.*\.)?(?:{pattern})", refused), value))

    def find(self, module: str, default: float) -> float:
        return next((value for pattern, value in self._patterns if pattern.fullmatch(module)), default)
