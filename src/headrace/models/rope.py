"""Rotary frequencies from a config: default, linear, llama3, YaRN, LongRoPE and explicit scaling."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import cast

import numpy as np
from msgspec import Struct

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.ops.value import Array
from headrace.weights.config_json import Config, boolean, find, integer, number, numbers, refused, text

LOG = logging.getLogger("headrace.models")

CONTEXT_IN_USE = "headrace_context"
"""Config key: the context in tokens that a model is loaded with, if it differs from the model's own."""


class Rope(Struct, frozen=True, eq=False):
    """`inv_freq` [rotary_dim / 2] in radians per position; `scale` multiplies cosine and sine."""

    inv_freq: Array
    scale: float = 1.0


def read_rope(config: Config, head_dim: int, share: float = 1.0) -> Rope:
    """The frequencies of a config: from `rope_parameters`, or the older `rope_theta` and `rope_scaling`.

    RoPE rotates the first `share` of each head, unless `rope_parameters.partial_rotary_factor` is set.
    Raises CorruptFile if the settings give no finite frequencies.
    """
    try:
        with np.errstate(all="ignore"):
            rope = _rope(config, head_dim, share)
            if np.isfinite(rope.inv_freq).all() and math.isfinite(rope.scale):
                return rope
    except (ArithmeticError, ValueError):  # division by zero, or the logarithm of a negative number
        pass
    raise _no_numbers(config)


def _no_numbers(config: Config) -> CorruptFile:
    settings = repr(_table(config) or {"rope_theta": find(config, "rope_theta")})
    return CorruptFile(
        f"config.json has rotary settings that give no finite frequencies or scale: {settings[:200]}: "
        "correct them"
    )


def _rope(config: Config, head_dim: int, share: float) -> Rope:
    table = _table(config)
    rotary_dim = int(head_dim * min(number(table, "partial_rotary_factor", share), 2.0))
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise UnsupportedModel(
            f"config.json: {rotary_dim} of a head's {head_dim} entries would rotate; it must be even"
        )
    theta = number(table, "rope_theta", number(config, "rope_theta", 10000.0, minimum=1.0), minimum=1.0)
    kind = text(table, "rope_type", text(table, "type", "default"))
    exponent = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    plain = (np.float32(1.0) / np.power(np.float32(theta), exponent)).astype(np.float32)
    if kind == "default":
        return Rope(plain)
    if kind == "linear":
        return Rope(plain / np.float32(number(table, "factor")))
    if kind == "llama3":
        return Rope(_llama3(plain, table))
    if kind == "ntk":
        return Rope(_ntk(plain, table, theta))
    if kind == "divided":  # GGUF only: one divisor per frequency
        return Rope(plain / np.array(numbers(table, "divisors", plain.size, above=0), np.float32))
    if kind == "yarn":
        return _yarn(plain, table, config, theta)
    if kind == "longrope":
        return _longrope(plain, table, config)
    raise UnsupportedModel(
        f"rope scaling '{kind}' is not supported; known: default, linear, llama3, longrope, ntk, yarn"
    )


def read_score_scale(config: Config) -> float:
    """Factor that DeepSeek's YaRN applies to attention scores, in addition to scaling cosine and sine."""
    table = _table(config)
    mscale = number(table, "mscale_all_dim", 0.0)
    if not mscale or text(table, "rope_type", text(table, "type", "default")) == "default":
        return 1.0
    scale = _mscale(number(table, "factor"), mscale)
    if not math.isfinite(scale * scale):
        raise _no_numbers(config)
    return scale * scale


def _table(config: Config) -> Config:
    """The object with the rotary settings; of two spellings the older one counts, as in `transformers`."""
    for field in ("rope_scaling", "rope_parameters"):
        value = find(config, field)
        if value is not None and not isinstance(value, Mapping):
            raise refused(field, value, "an object")
        if value:
            return _flat(field, cast(Config, value))
    return {}


def _flat(field: str, table: Config) -> Config:
    kinds = [name for name, value in table.items() if isinstance(value, Mapping)]
    if kinds:
        raise UnsupportedModel(
            f"config.json: {field} has settings by kind of layer ({', '.join(kinds)[:80]}), which this"
            " architecture does not have: give one object for all layers"
        )
    return table


def _llama3(plain: Array, table: Config) -> Array:
    """Llama 3.1 scaling: long wavelengths are divided by the factor, medium ones interpolated."""
    factor = number(table, "factor")
    low, high = number(table, "low_freq_factor"), number(table, "high_freq_factor")
    context = integer(table, "original_max_position_embeddings", maximum=1 << 30)
    wavelength = 2 * math.pi / plain
    blend = (context / wavelength - low) / (high - low)
    middle = (1 - blend) * plain / factor + blend * plain
    scaled = np.where(wavelength > context / low, plain / factor, plain)
    is_middle = (wavelength >= context / high) & (wavelength <= context / low)
    return np.where(is_middle, middle, scaled).astype(np.float32)


def _ntk(plain: Array, table: Config, theta: float) -> Array:
    """Fixed NTK scaling, as GTE has it: the lowest frequency is divided by `factor` times the share of one
    frequency, and all others by less; with `mixed_b` by exp(ln(factor) * (i / n) ^ b) for i from 1 to n.
    """
    factor, count = number(table, "factor", minimum=1.0), plain.size
    mixed = number(table, "mixed_b", 0.0, minimum=0.0)
    if mixed:
        share = (np.arange(1, count + 1, dtype=np.float32) / np.float32(count)) ** np.float32(mixed)
        return (plain / np.exp(np.float32(math.log(factor)) * share)).astype(np.float32)
    exponent = np.arange(count, dtype=np.float32) / np.float32(count)
    scaled = np.float32(1.0) / np.power(np.float32(theta * factor), exponent)
    return (scaled / np.float32(factor ** (1 / count))).astype(np.float32)


def _yarn(plain: Array, table: Config, config: Config, theta: float) -> Rope:
    """YaRN (Peng et al. 2023): interpolate low frequencies, keep high ones, scale attention."""
    rotary_dim = 2 * len(plain)
    longest = integer(config, "max_position_embeddings", maximum=1 << 30)
    context = integer(table, "original_max_position_embeddings", longest, maximum=1 << 30)
    factor = number(table, "factor", longest / context)

    def rotations_to_dim(rotations: float) -> float:
        return rotary_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = (
        rotations_to_dim(number(table, "beta_fast", 32.0)),
        rotations_to_dim(number(table, "beta_slow", 1.0)),
    )
    if boolean(table, "truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
    inv_freq = plain / factor * ramp + plain * (1 - ramp)
    mscale, of_scores = number(table, "mscale", 0.0), number(table, "mscale_all_dim", 0.0)
    both = bool(mscale and of_scores)
    scale = _mscale(factor, mscale) / _mscale(factor, of_scores) if both else _mscale(factor, 1.0)
    return Rope(inv_freq.astype(np.float32), number(table, "attention_factor", scale))


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(plain: Array, table: Config, config: Config) -> Rope:
    """LongRoPE (Ding et al. 2024): a divisor per frequency, from one list within the original context and
    from another beyond it.

    A program has one table for all positions, so the list is chosen by the context that the model is loaded
    with: the long list if it exceeds the original context. `transformers` switches lists in the middle of a
    sequence and keeps using keys that were rotated with the other list.
    """
    longest = integer(config, "max_position_embeddings", maximum=1 << 30)
    original = integer(
        table,
        "original_max_position_embeddings",
        integer(config, "original_max_position_embeddings", longest, minimum=2, maximum=1 << 30),
        minimum=2,
        maximum=1 << 30,
    )
    in_use = integer(config, CONTEXT_IN_USE, longest, maximum=1 << 30)
    name = "long_factor" if in_use > original else "short_factor"
    LOG.info("%s rotates for a context of %s tokens; the original is %s", name, in_use, original)
    divisors = np.array(numbers(table, name, plain.size, above=0), np.float32)
    factor = number(table, "factor", longest / original)
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope(plain / divisors, number(table, "attention_factor", scale))
