"""Mamba 2: no attention; layers of convolution and selective scan with states of fixed size."""

from __future__ import annotations

import math
from typing import cast

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.models.blocks import project
from headrace.models.decoder_config import read_act
from headrace.ops.add import add
from headrace.ops.builder import Builder
from headrace.ops.causal_conv import causal_conv
from headrace.ops.embed import embed
from headrace.ops.gated_act import gated_act
from headrace.ops.gather import gather
from headrace.ops.rms_norm import rms_norm
from headrace.ops.selective_scan import selective_scan
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, find, integer, number

MAX_TOKENS = 1 << 20
"""Context if the config names none. The state does not grow, so this is the only limit on length."""


class Mamba2Config(Struct, frozen=True, kw_only=True):
    """Sizes in entries; `inner` = heads * head_dim. Each of `groups` groups shares B, C and the mean of the
    gated norm.
    """

    hidden: int
    layers: int
    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int
    vocabulary: int
    context: int
    eps: float
    act: str
    tied: bool
    bias: bool
    conv_bias: bool
    smallest_dt: float
    largest_dt: float

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_heads(self) -> int:
        return 0


def read_config(config: Config) -> Mamba2Config:
    smallest_dt, largest_dt = _time_step_limit(config)
    c = Mamba2Config(
        hidden=integer(config, "hidden_size", 4096),
        layers=integer(config, "num_hidden_layers", 64, maximum=4096),
        heads=integer(config, "num_heads", 128),
        head_dim=integer(config, "head_dim", 64),
        groups=integer(config, "n_groups", 8),
        state=integer(config, "state_size", 128),
        taps=integer(config, "conv_kernel", 4, minimum=2, maximum=64),
        vocabulary=integer(config, "vocab_size", 32768),
        context=integer(config, "max_position_embeddings", MAX_TOKENS, maximum=1 << 30),
        eps=number(config, "layer_norm_epsilon", minimum=0.0),
        act=read_act(config, "hidden_act"),
        tied=boolean(config, "tie_word_embeddings", False),
        bias=boolean(config, "use_bias", False),
        conv_bias=boolean(config, "use_conv_bias", True),
        smallest_dt=smallest_dt,
        largest_dt=largest_dt,
    )
    expanded = number(config, "expand", 2.0) * c.hidden
    if c.inner != expanded or c.heads % c.groups:
        raise UnsupportedModel(
            f"config.json: {c.heads} heads of {c.head_dim} entries in {c.groups} groups over {expanded:g}"
            " inner entries: heads times their size must be the inner size, heads a multiple of the groups"
        )
    return c


def _time_step_limit(config: Config) -> tuple[float, float]:
    """[smallest, largest]. An infinite largest value is represented as an object by strict_json."""
    limits = find(config, "time_step_limit")
    if limits is None:
        return 0.0, math.inf
    entries = cast("list[object]", limits) if isinstance(limits, list) else []
    found = [math.inf if entry == {"__float__": "Infinity"} else entry for entry in entries]
    limit = tuple(float(entry) for entry in found if isinstance(entry, int | float))
    if len(found) == len(limit) == 2 and 0 <= limit[0] <= limit[1]:
        return limit[0], limit[1]
    raise UnsupportedModel(
        f"config.json: time_step_limit is {limits!r:.80}, it must be two numbers of at least 0 in order"
    )


def mixer(m: Builder, c: Mamba2Config, layer: int, x: Value) -> Value:
    at = f"backbone.layers.{layer}.mixer"
    sizes = c.inner, c.inner, 2 * c.groups * c.state, c.heads
    gate, inputs, bc, dt = (
        project(
            m, x, f"{at}.in_proj", size, bias=c.bias, part=TensorSlice(of=sum(sizes), first=sum(sizes[:i]))
        )
        for i, size in enumerate(sizes)
    )
    inputs = convolution(m, c, layer, "inputs", inputs, 0)
    bc = convolution(m, c, layer, "bc", bc, c.inner)
    y = selective_scan(
        inputs,
        bc,
        dt,
        m.state(layer, "scan", c.inner * c.state),
        *(m.weight(f"{at}.{name}", c.heads) for name in ("A_log", "D", "dt_bias")),
        m.query_starts,
        m.lengths,
        m.state_slots,
        groups=c.groups,
        smallest_dt=c.smallest_dt,
        largest_dt=c.largest_dt,
    )
    y = gated_act(gate, y, kind="silu")
    y = rms_norm(y, m.weight(f"{at}.norm.weight", c.inner), eps=c.eps, runs=c.groups)
    return project(m, y, f"{at}.out_proj", c.hidden, bias=c.bias)


def convolution(m: Builder, c: Mamba2Config, layer: int, name: str, x: Value, first: int) -> Value:
    """Convolution over the layer's channels starting at `first`, as many as x has."""
    at, size = f"backbone.layers.{layer}.mixer.conv1d", int(x.shape[1])
    part = TensorSlice(of=c.inner + 2 * c.groups * c.state, first=first)
    return causal_conv(
        x,
        m.state(layer, name, (c.taps - 1) * size),
        m.weight(f"{at}.weight", size, 1, c.taps, part=part),
        m.weight(f"{at}.bias", size, part=part) if c.conv_bias else None,
        m.query_starts,
        m.lengths,
        m.state_slots,
        kind=c.act,
    )


def define(m: Builder, c: Mamba2Config) -> Value:
    """Logits [R, V]."""
    table = m.weight("backbone.embeddings.weight", c.vocabulary, c.hidden)
    x = embed(m.tokens, table)
    for layer in range(c.layers):
        y = rms_norm(x, m.weight(f"backbone.layers.{layer}.norm.weight", c.hidden), eps=c.eps)
        x = add(x, mixer(m, c, layer, y))
    x = rms_norm(gather(x, m.rows), m.weight("backbone.norm_f.weight", c.hidden), eps=c.eps)
    return project(m, x, "backbone.embeddings" if c.tied else "lm_head", c.vocabulary)
