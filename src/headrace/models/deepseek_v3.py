"""DeepSeek V3 and R1: multi-head latent attention, experts chosen by sigmoid in groups, shared experts.

Attention is computed in its absorbed form (DeepSeek-V2, 2024, section 2.1.2): the cache holds one latent
row and one rotated key for all heads, and the up-projections are applied to queries and outputs instead.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.errors import UnsupportedModel
from headrace.kv.pages import PAGE_TOKENS
from headrace.models import blocks, llama
from headrace.models.blocks import project
from headrace.models.decoder_config import DecoderConfig, Experts, Latent, read_decoder, read_experts
from headrace.models.rope import read_score_scale
from headrace.ops.add import add
from headrace.ops.attend import attend
from headrace.ops.builder import Builder
from headrace.ops.head_linear import head_linear
from headrace.ops.join import join
from headrace.ops.kv_write import kv_write
from headrace.ops.rms_norm import rms_norm
from headrace.ops.rope import rope
from headrace.ops.route import route
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value
from headrace.weights.config_json import Config, boolean, integer, number, text

_LATENT_EPS = 1e-6  # epsilon of the latent norms, independent of rms_norm_eps


def read_config(config: Config) -> DecoderConfig:
    method = text(config, "topk_method", "noaux_tc")
    if method != "noaux_tc" or text(config, "scoring_func", "sigmoid") != "sigmoid":
        raise UnsupportedModel(
            f"config.json: deepseek_v3 with topk_method '{method}' is not supported; noaux_tc with sigmoid is"
        )
    c = read_latent_decoder(config)
    assert c.experts is not None
    groups, top_groups = integer(config, "n_group", 1), integer(config, "topk_group", 1)
    normalize = boolean(config, "norm_topk_prob", True)
    _check_groups(c.experts, groups, top_groups)
    experts = replace(c.experts, groups=groups, top_groups=top_groups, normalize=normalize)
    return replace(c, experts=experts)


def read_latent_decoder(config: Config) -> DecoderConfig:
    """Config that DeepSeek V2 and V3 share: all but the choice of experts."""
    latent = Latent(
        query_rank=integer(config, "q_lora_rank", 0, minimum=0),
        kv_rank=integer(config, "kv_lora_rank"),
        plain=integer(config, "qk_nope_head_dim"),
        rotary=integer(config, "qk_rope_head_dim"),
        value=integer(config, "v_head_dim"),
        paired=boolean(config, "rope_interleave", True),
        split=boolean(config, "split_kv_b", False),  # only in configs made from GGUF files
    )
    one_key_head: Config = {"head_dim": latent.rotary, "num_key_value_heads": 1}
    c = llama.with_biases(config, read_decoder(config | one_key_head))
    first, every = (
        integer(config, "first_k_dense_replace", 0, minimum=0),
        integer(config, "moe_layer_freq", 1),
    )
    layers = tuple(layer >= first and layer % every == 0 for layer in range(c.layers))
    intermediate = integer(config, "moe_intermediate_size")
    experts = read_experts(config, "n_routed_experts", intermediate, layers, normalize=False)
    return replace(
        c,
        head_dim=latent.kv_rank + latent.rotary,
        attention_scale=(latent.plain + latent.rotary) ** -0.5 * read_score_scale(config),
        latent=latent,
        experts=replace(
            experts,
            scale=number(config, "routed_scaling_factor", 1.0),
            shared=integer(config, "n_shared_experts", 0, minimum=0),
        ),
    )


def _check_groups(experts: Experts, groups: int, top_groups: int) -> None:
    if experts.count % groups or top_groups > groups or experts.top_k > experts.count // groups * top_groups:
        raise UnsupportedModel(
            f"config.json: {experts.top_k} of {experts.count} experts cannot be chosen from {top_groups} of "
            f"{groups} groups"
        )


def attention(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    a, at = c.latent, f"model.layers.{layer}.self_attn"
    assert a is not None
    plain, rotary = _queries(m, c, a, x, at)
    latent, key = _latent_and_key(m, c, a, x, at)
    rotation = c.ropes[layer]
    assert rotation is not None
    inv_freq = m.constant("inv_freq", rotation.inv_freq)
    rotary, key = (
        rope(part, m.positions, inv_freq, head_dim=a.rotary, scale=rotation.scale) for part in (rotary, key)
    )
    to_latent, from_latent = _absorbed(m, c, a, at)
    cache = m.cache(layer, c.head_dim, 0)
    kv_write(join(latent, key, heads=1), None, m.slots, cache)
    y = attend(
        join(head_linear(plain, to_latent), rotary, heads=c.heads),
        cache,
        m.query_starts,
        m.lengths,
        m.block_tables,
        head_dim=c.head_dim,
        value_dim=a.kv_rank,
        page_tokens=PAGE_TOKENS,
        scale=c.attention_scale,
        window=0,
        softcap=0.0,
    )
    return project(m, head_linear(y, from_latent), f"{at}.o_proj", c.hidden, bias=c.output_bias)


def _queries(m: Builder, c: DecoderConfig, a: Latent, x: Value, at: str) -> tuple[Value, Value]:
    """Non-rotary and rotary query entries of all heads; the checkpoint stores them in this order per head."""
    name, stride = f"{at}.q_proj", a.plain + a.rotary
    if a.query_rank:
        x = project(m, x, f"{at}.q_a_proj", a.query_rank, bias=c.qkv_bias)
        x = rms_norm(x, m.weight(f"{at}.q_a_layernorm.weight", a.query_rank), eps=_LATENT_EPS)
        name = f"{at}.q_b_proj"
    plain = TensorSlice(of=c.heads * stride, block=a.plain, stride=stride)
    rotary = replace(plain, first=a.plain, block=a.rotary, even_first=a.paired)
    return (
        project(m, x, name, c.heads * a.plain, part=plain),
        project(m, x, name, c.heads * a.rotary, part=rotary),
    )


def _latent_and_key(m: Builder, c: DecoderConfig, a: Latent, x: Value, at: str) -> tuple[Value, Value]:
    """The normed latent row, and the rotary key entries shared by all heads."""
    name, of = f"{at}.kv_a_proj_with_mqa", a.kv_rank + a.rotary
    rotary = TensorSlice(of=of, first=a.kv_rank, block=a.rotary, stride=a.rotary, even_first=a.paired)
    latent = project(m, x, name, a.kv_rank, bias=c.qkv_bias, part=TensorSlice(of=of))
    key = project(m, x, name, a.rotary, bias=c.qkv_bias, part=rotary)
    return rms_norm(latent, m.weight(f"{at}.kv_a_layernorm.weight", a.kv_rank), eps=_LATENT_EPS), key


def _absorbed(m: Builder, c: DecoderConfig, a: Latent, at: str) -> tuple[Value, Value]:
    """Per head, the matrix from non-rotary query entries to the latent row, and the one from the latent row
    to a value. The checkpoint stores, per head, the rows that map the latent row to non-rotary key
    entries, then those that map it to values; or, if split, both as they are needed, a tensor for each head.
    """
    if a.split:
        return (
            m.weight(f"{at}.k_b_proj.*.weight", c.heads * a.kv_rank, a.plain, stack=c.heads),
            m.weight(f"{at}.v_b_proj.*.weight", c.heads * a.value, a.kv_rank, stack=c.heads),
        )
    name, stored = f"{at}.kv_b_proj.weight", a.plain + a.value
    of_keys = TensorSlice(of=c.heads * a.kv_rank, transposed=True, matrices=c.heads, inputs=stored)
    of_values = TensorSlice(of=c.heads * stored, first=a.plain, block=a.value, stride=stored)
    return (
        m.weight(name, c.heads * a.kv_rank, a.plain, part=of_keys),
        m.weight(name, c.heads * a.value, a.kv_rank, part=of_values),
    )


def mlp(m: Builder, c: DecoderConfig, layer: int, x: Value) -> Value:
    return mixed_mlp(m, c, layer, x, kind="sigmoid")


def mixed_mlp(m: Builder, c: DecoderConfig, layer: int, x: Value, *, kind: str) -> Value:
    """The MLP of a layer, dense or mixture of experts; `kind` is the routing function (ops/route.py)."""
    e, at = c.experts, f"model.layers.{layer}.mlp"
    assert e is not None
    if not e.layers[layer]:
        return llama.mlp(m, c, layer, x)
    gates = route(
        project(m, x, f"{at}.gate", e.count),
        m.weight(f"{at}.gate.e_score_correction_bias", e.count) if kind == "sigmoid" else None,
        kind=kind,
        top_k=e.top_k,
        groups=e.groups,
        top_groups=e.top_groups,
        normalize=int(e.normalize),
        scale=e.scale,
    )
    y = blocks.experts(m, c, x, gates, f"{at}.experts", ("gate_proj", "up_proj", "down_proj"))
    if not e.shared:
        return y
    return add(y, llama.gated_mlp(m, c, x, f"{at}.shared_experts", e.shared * e.intermediate))


def define(m: Builder, c: DecoderConfig) -> Value:
    return llama.define(m, c, attention, mlp)
