"""Whole layers that are left out."""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np

from headrace.compress.pruning.cut_checkpoint import Cut, CutCheckpoint
from headrace.compress.pruning.importance import LAYER, Importance, decoder_of
from headrace.errors import UnsupportedModel, UsageError
from headrace.models.config_classes import complete
from headrace.models.decoder_config import DecoderConfig
from headrace.weights.checkpoint_reader import CheckpointReader

_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_LISTS = ("layer_types", "mlp_layer_types", "no_rope_layers", "attention_layers")
"""Fields with an entry for each layer."""


def layers_to_drop(asked: str, layers: int) -> int:
    """How many `25%` or `3` are of so many layers, rounded down; UsageError where none stays or goes."""
    found = re.fullmatch(r"(\d{1,9})(\.\d{1,9})?(%?)", asked.strip())
    if found is None or (found[2] and not found[3]):
        raise UsageError(
            f"--drop-layers is {asked[:40]!r}: give a share such as 25%, or a number of layers",
            param="drop_layers",
        )
    count = int(layers * float(asked.strip().rstrip("%")) / 100) if found[3] else int(found[1])
    if not 0 < count < layers:
        raise UsageError(
            f"--drop-layers {asked} is {count} of {layers} layers: at least one must go and one must stay",
            param="drop_layers",
        )
    return count


def drop_layers(source: CheckpointReader, found: Importance, count: int) -> tuple[Cut, list[int]]:
    """A checkpoint without the `count` layers of the least influence, and which these are.

    UnsupportedModel where no config describes the others.
    """
    model = decoder_of(source)
    layers = model.config.layers
    if len(found.influence) != layers:
        raise UnsupportedModel(f"the layers of {model.model_type} cannot be told apart: it cannot be pruned")
    order = np.argsort(np.array(found.influence), kind="stable")
    dropped = sorted(int(layer) for layer in order[:count])
    stay = [layer for layer in range(layers) if layer not in dropped]
    place = {layer: index for index, layer in enumerate(stay)}
    names: dict[str, str] = {}
    for name in source.tensors:
        at = LAYER.match(name)
        if at is None:
            names[name] = name
        elif int(at[2]) in place:
            names[f"{at[1]}{place[int(at[2])]}{at[3]}"] = name
    cut = Cut(_config_of(source, stay), names)
    _check(model.config, cut, source, stay)
    return cut, dropped


def _config_of(source: CheckpointReader, stay: list[int]) -> dict[str, object]:
    """The config of the layers that stay: lists with an entry for each layer, and bounds between layers."""
    own, full = dict(source.config), complete(source.config)
    model: Any = decoder_of(source).config
    for field in _LISTS:
        value = full.get(field)
        if isinstance(value, list):
            listed = cast("list[object]", value)
            own[field] = [listed[layer] for layer in stay if layer < len(listed)]
    if isinstance(model, DecoderConfig):
        if "layer_types" not in own and len(set(model.windows)) > 1:
            own["layer_types"] = [
                "sliding_attention" if model.windows[layer] else "full_attention" for layer in stay
            ]
        if "no_rope_layer_interval" in full and "no_rope_layers" not in own:
            own["no_rope_layers"] = [int(model.ropes[layer] is not None) for layer in stay]
    for field in ("max_window_layers", "first_k_dense_replace"):
        bound = full.get(field)
        if isinstance(bound, int) and field in own:
            own[field] = sum(layer < bound for layer in stay)
    only = full.get("mlp_only_layers")
    if isinstance(only, list) and only:
        own["mlp_only_layers"] = [index for index, layer in enumerate(stay) if layer in only]
    for field in _COUNTS:
        if field in own:
            own[field] = len(stay)
    return own


def _check(before: Any, cut: Cut, source: CheckpointReader, stay: list[int]) -> None:
    """Each layer that stays must be read as it was."""
    after: Any = decoder_of(CutCheckpoint(source, cut)).config
    if not isinstance(before, DecoderConfig):
        return
    same = after.layers == len(stay) and all(
        before.windows[layer] == after.windows[index]
        and (before.ropes[layer] is None) == (after.ropes[index] is None)
        and _theta(before, layer) == _theta(after, index)
        for index, layer in enumerate(stay)
    )
    if same and before.experts is not None:
        assert after.experts is not None
        same = [before.experts.layers[layer] for layer in stay] == list(after.experts.layers)
    if not same:
        raise UnsupportedModel(
            "the layers of this model differ by a rule of its config that no longer holds where some are left"
            " out: choose --ffn or --heads"
        )


def _theta(config: DecoderConfig, layer: int) -> bytes:
    rope = config.ropes[layer]
    return b"" if rope is None else np.asarray(rope.inv_freq, np.float32).tobytes()
