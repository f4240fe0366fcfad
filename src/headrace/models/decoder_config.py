"""The facts that decoder-only transformers of the Llama family share, read from config.json."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import UnsupportedModel
from headrace.models.rope import Rope, read_rope
from headrace.weights.config_json import Config, boolean, integer, number, text

_ACTS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderConfig:
    """Sizes in entries; `windows[i]` is layer i's sliding window in tokens (0: full attention)."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    eps: float
    act: str
    tied: bool
    rope: Rope
    windows: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False


def read_decoder(config: Config, *, window: int = 0) -> DecoderConfig:
    """The common fields; a model file adds what is its own. `window` applies to every layer."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    head_dim = integer(config, "head_dim", max(hidden // heads, 1))
    if heads % kv_heads or head_dim % 2:
        raise UnsupportedModel(
            f"config.json: {heads} heads over {kv_heads} key/value heads of {head_dim} entries: heads must be"
            " a multiple of key/value heads, and a head must have an even size"
        )
    act = text(config, "hidden_act", "silu")
    if act not in _ACTS:
        raise UnsupportedModel(f"config.json: hidden_act '{act}' is not supported; known: {', '.join(_ACTS)}")
    layers = integer(config, "num_hidden_layers", maximum=4096)
    return DecoderConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=integer(config, "intermediate_size"),
        vocabulary=integer(config, "vocab_size"),
        context=integer(config, "max_position_embeddings", maximum=1 << 30),
        eps=number(config, "rms_norm_eps", 1e-6),
        act=_ACTS[act],
        tied=boolean(config, "tie_word_embeddings", False),
        rope=read_rope(config, head_dim),
        windows=(window,) * layers,
    )
