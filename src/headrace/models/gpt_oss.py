"""gpt-oss: attention sinks, windows on every other layer, experts with clamped SwiGLU, biases everywhere."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.models import blocks, llama
from headrace.models.blocks import project
from headrace.models.decoder_config import DecoderConfig, Experts, read_decoder, read_experts, read_windows
from headrace.ops.builder import Builder
from headrace.ops.moe import moe
from headrace.ops.route import route
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, find, integer, number, text

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Of a config without rotary settings."""
_SWIGLU = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # constants of `swiglu_clamped` in ops/moe.py


def read_config(config: Config) -> DecoderConfig:
    for field, known in _SWIGLU.items():
        if number(config, field, known) != known:
            raise UnsupportedModel(f"config.json: {field} {find(config, field)} is not supported; {known} is")
    scaled = find(config, "rope_parameters") or find(config, "rope_scaling")
    c = read_decoder(config if scaled else config | {"rope_parameters": _ROPE})
    window = integer(config, "sliding_window")
    bias = boolean(config, "attention_bias", True)
    experts = read_experts(config, "num_local_experts", c.intermediate, (True,) * c.layers, normalize=True)
    method = text(config, "quantization_config.quant_method", "")
    return replace(
        c,
        windows=read_windows(config, c.layers, window, lambda layer: layer % 2 == 0),
        qkv_bias=bias,
        output_bias=bias,
        experts=replace(
            experts,
            transposed=method != "mxfp4",
            separate=boolean(config, "separate_experts", False),  # only in configs made from GGUF files
        ),
    )


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    at = f"model.layers.{layer}.self_attn"
    q, k, v = llama.project_qkv(m, c, layer, x)
    y = blocks.attention(m, c, layer, q, k, v, sinks=m.weight(f"{at}.sinks", c.heads))
    return project(m, y, f"{at}.o_proj", c.hidden, bias=c.output_bias)


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    e, at = c.experts, f"model.layers.{layer}.mlp"
    assert e is not None
    gates = route(
        project(m, x, f"{at}.router", e.count, bias=True),
        None,
        kind="softmax",
        top_k=e.top_k,
        groups=1,
        top_groups=1,
        normalize=1,
        scale=1.0,
    )
    matrices = _separate(m, c, e, at) if e.separate else _interleaved(m, c, e, at)
    return moe(x, gates, *matrices, kind="swiglu_clamped")


def _separate(m: Builder, c: DecoderConfig, e: Experts, at: str) -> list[Value]:
    """Gate, up and down matrices, then their biases, of checkpoints with a tensor for each."""
    sizes = {"gate_proj": (e.intermediate, c.hidden), "up_proj": (e.intermediate, c.hidden)}
    sizes["down_proj"] = (c.hidden, e.intermediate)
    named = [(f"{at}.experts.*.{name}", e.count * n, k) for name, (n, k) in sizes.items()]
    return [
        *(m.weight(f"{name}.weight", n, k, stack=e.count) for name, n, k in named),
        *(m.weight(f"{name}.bias", n, stack=e.count) for name, n, _ in named),
    ]


def _interleaved(m: Builder, c: DecoderConfig, e: Experts, at: str) -> list[Value]:
    """The same of checkpoints that have all experts in one tensor, with gate and up rows interleaved."""
    both = TensorSlice(of=2 * e.count * e.intermediate, block=1, stride=2, matrices=e.count)
    down = TensorSlice(of=e.count * c.hidden, matrices=e.count)
    name, turned, weights, biases = f"{at}.experts", e.transposed, list[Value](), list[Value]()
    for projection, part, size, k in (
        ("gate_up_proj", both, e.intermediate, c.hidden),
        ("gate_up_proj", replace(both, first=1), e.intermediate, c.hidden),
        ("down_proj", down, c.hidden, e.intermediate),
    ):
        n = e.count * size
        weights.append(m.weight(f"{name}.{projection}", n, k, part=replace(part, transposed=turned)))
        biases.append(m.weight(f"{name}.{projection}_bias", n, part=part))
    return [*weights, *biases]


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, attention, mlp)
