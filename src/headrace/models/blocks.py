"""Building blocks of decoder definitions: embedding and logits, norms, projections, attention, plain MLP."""

from __future__ import annotations

from typing import NamedTuple

from headrace.kv.pages import PAGE_TOKENS
from headrace.models.decoder_config import DecoderConfig
from headrace.ops import layer_norm as layer_norms
from headrace.ops.act import act
from headrace.ops.attend import attend
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.kv_write import kv_write
from headrace.ops.linear import linear
from headrace.ops.moe import moe
from headrace.ops.rms_norm import rms_norm
from headrace.ops.rope import rope
from headrace.ops.route import route
from headrace.ops.scale import scale
from headrace.ops.softcap import softcap
from headrace.ops.tensor_part import TensorSlice
from headrace.ops.value import Value


def embed_tokens(m: Builder, c: DecoderConfig, name: str = "model.embed_tokens") -> Value:
    """Embeddings [T, hidden] of the step's tokens."""
    x = embed(m.tokens, m.weight(f"{name}.weight", c.vocabulary, c.hidden))
    return x if c.embedding_scale == 1 else scale(x, by=c.embedding_scale)


def logits(
    m: Builder, c: DecoderConfig, x: Value, name: str = "lm_head", tied: str = "model.embed_tokens"
) -> Value:
    """Logits [R, V] from normed rows: output matrix `name`, or the tied token embedding."""
    y = project(m, x, tied if c.tied else name, c.vocabulary)
    if c.logits_scale != 1:
        y = scale(y, by=c.logits_scale)
    return softcap(y, cap=c.logits_softcap) if c.logits_softcap else y


def project(
    m: Builder, x: Value, name: str, size: int, *, bias: bool = False, part: TensorSlice | None = None
) -> Value:
    """Linear layer `name` with `size` outputs; `part` selects rows of a fused weight."""
    w = m.weight(f"{name}.weight", size, int(x.shape[1]), part=part)
    return linear(x, w, m.weight(f"{name}.bias", size, part=part) if bias else None)


def norm(m: Builder, c: DecoderConfig, x: Value, name: str, size: int = 0, *, plus: float = 0.0) -> Value:
    """RMS norm over groups of `size` entries (0: the whole row); `plus` is added to the stored weight."""
    size = size or int(x.shape[1])
    part = TensorSlice(of=size, plus=plus) if plus else None
    return rms_norm(x, m.weight(f"{name}.weight", size, part=part), eps=c.eps)


def layer_norm(m: Builder, c: DecoderConfig, x: Value, name: str) -> Value:
    """Layer norm over the whole row, with a bias if the config has norm biases."""
    size = int(x.shape[1])
    w = m.weight(f"{name}.weight", size)
    bias = m.weight(f"{name}.bias", size) if c.norm_bias else None
    return layer_norms.layer_norm(x, w, bias, eps=c.eps)


class RelativeBias(NamedTuple):
    """What attention adds to scores by `buckets` of distances; see ops/attend.py."""

    buckets: int
    of_query: Value | None
    of_key: Value | None
    of_head: Value | None
    bucket_of: Value


def attention(
    m: Builder,
    c: DecoderConfig,
    layer: int,
    q: Value,
    k: Value,
    v: Value,
    *,
    sinks: Value | None = None,
    relative: RelativeBias | None = None,
) -> Value:
    """Rotate q and k if the layer uses RoPE, write the KV cache, attend: [T, heads * head_dim].

    All layers of an encoder share one cache, since later steps never read its keys.
    """
    rotation = c.ropes[layer]
    if rotation is not None:
        inv_freq = m.constant("inv_freq", rotation.inv_freq)
        q = rope(q, m.positions, inv_freq, head_dim=c.head_dim, scale=rotation.scale)
        k = rope(k, m.positions, inv_freq, head_dim=c.head_dim, scale=rotation.scale)
    cache = m.cache(0 if c.bidirectional else layer, c.kv_heads * c.head_dim)
    kv_write(k, v, m.slots, cache)
    return attend(
        q,
        cache,
        m.query_starts,
        m.lengths,
        m.block_tables,
        sinks,
        *(() if relative is None else relative[1:]),
        **({} if relative is None else {"buckets": relative.buckets}),
        head_dim=c.head_dim,
        value_dim=c.head_dim,
        page_tokens=PAGE_TOKENS,
        scale=c.attention_scale,
        window=c.windows[layer],
        softcap=c.attention_softcap,
        ahead=c.ahead(layer),
    )


def mlp(m: Builder, c: DecoderConfig, x: Value, up: str, down: str, *, transposed: bool = False) -> Value:
    """Up projection, activation, down projection. `transposed`: matrices are stored as [inputs, outputs]."""
    parts = [TensorSlice(of=n, transposed=True) if transposed else None for n in (c.intermediate, c.hidden)]
    x = act(project(m, x, up, c.intermediate, bias=c.mlp_bias, part=parts[0]), kind=c.act)
    return project(m, x, down, c.hidden, bias=c.mlp_bias, part=parts[1])


def softmax_experts(m: Builder, c: DecoderConfig, x: Value, at: str, names: tuple[str, str, str]) -> Value:
    """Mixture of experts with a softmax router; `names` are an expert's gate, up and down projections."""
    e = c.experts
    assert e is not None
    gates = route(
        project(m, x, f"{at}.gate", e.count),
        None,
        kind="softmax",
        top_k=e.top_k,
        groups=1,
        top_groups=1,
        normalize=int(e.normalize),
        scale=1.0,
    )
    return experts(m, c, x, gates, f"{at}.experts", names)


def experts(
    m: Builder, c: DecoderConfig, x: Value, gates: Value, at: str, names: tuple[str, str, str]
) -> Value:
    """Output of the experts chosen by `gates` [T, E]; the checkpoint has one tensor per expert and matrix."""
    assert c.experts is not None
    count, size = c.experts.count, c.experts.intermediate
    gate, up, down = (
        m.weight(f"{at}.*.{name}.weight", count * n, k, stack=count)
        for name, n, k in zip(names, (size, size, c.hidden), (c.hidden, c.hidden, size), strict=True)
    )
    return moe(x, gates, gate, up, down, None, None, None, kind=c.act)
