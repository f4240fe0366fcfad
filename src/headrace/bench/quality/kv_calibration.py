"""Calibrates keys and values of a model: factors of balance, and bits for each layer by measured losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from headrace.bench.quality.comparison import compare
from headrace.bench.quality.next_token_model import NextTokenModel
from headrace.compress.kv_balance import balance_keys
from headrace.compress.kv_bits import allocate, choices_for
from headrace.executors.kv_layers import KV_BITS, KvLayers, LayerType
from headrace.loading.options import EngineOptions
from headrace.ops.value import Ints
from headrace.weights.checkpoint import open_checkpoint

Progress = Callable[[int, int], None]
_MEASURED_WINDOWS = 8


def calibrate_kv(
    model: Path,
    options: EngineOptions,
    windows: Ints,
    bits: float | None,
    progress: Progress = lambda done, total: None,
) -> KvLayers:
    """Of the model in `model`, on windows [N, L] of tokens; with `bits`, also which layers get which type."""
    choices = () if bits is None else choices_for(bits)
    with open_checkpoint(model) as checkpoint:
        balance = balance_keys(checkpoint, windows)
    if bits is None:
        return KvLayers(balance=balance)
    layers = len(balance)
    stored = replace(options, quantization="keep", kv_cache_dtype="f32", quality=None)
    few, length = windows[:_MEASURED_WINDOWS], windows.shape[1]
    base = NextTokenModel(str(model), stored, longest=length)
    losses: dict[tuple[int, LayerType], float] = {}
    forms: list[tuple[int, LayerType]] = [(layer, type) for layer in range(layers) for type in choices]
    for done, (layer, type) in enumerate(forms):
        progress(done, len(forms))
        pairs = [(16, 16)] * layers
        pairs[layer] = KV_BITS[type]
        mixed = replace(stored, kv_cache_dtype="mixed")
        one = NextTokenModel(str(model), mixed, longest=length, kv=KvLayers(tuple(pairs), balance))
        scores = [compare(base.log_probs(row, 0), one.log_probs(row, 0), row[1:]) for row in few]
        losses[layer, type] = float(np.mean([score.kl.mean() for score in scores]))
    progress(len(forms), len(forms))
    types = allocate(losses, layers, bits)
    return KvLayers(tuple(KV_BITS[type] for type in types), balance)
