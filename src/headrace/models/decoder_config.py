"""Config fields shared by decoder-only transformers, read from config.json."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.models.rope import Rope, read_rope
from headrace.weights.config_json import Config, boolean, integer, number, text, texts

_ACTS = {name: name for name in ("silu", "gelu", "tanh", "relu")} | dict.fromkeys(
    ("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"
)


class Experts(Struct, frozen=True, kw_only=True):
    """Mixture of `count` MLPs with `intermediate` entries each. Each token uses `top_k` of them; the gates
    sum to 1 if `normalize`, and are multiplied by `scale`. `layers[i]` is True if layer i is a mixture.
    Experts are chosen from the `top_groups` best of `groups` groups; every token also uses the `shared`
    experts. `transposed`: expert matrices are stored as [inputs, outputs]; `separate`: each is a tensor of
    its own, also where the architecture's checkpoints have all in one.
    """

    count: int
    top_k: int
    intermediate: int
    normalize: bool
    layers: tuple[bool, ...]
    groups: int = 1
    top_groups: int = 1
    scale: float = 1.0
    shared: int = 0
    transposed: bool = False
    separate: bool = False


class Latent(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values of all heads come from one row of `kv_rank` entries,
    queries from one of `query_rank` (0: from the hidden row itself). Of a head's query and key, `plain`
    entries are not rotated and `rotary` are; `paired` means that rotated pairs are neighbors. A head's
    value has `value` entries. `split`: the matrices from the latent row are stored apart for keys and values.
    """

    query_rank: int
    kv_rank: int
    plain: int
    rotary: int
    value: int
    paired: bool
    split: bool = False


class DecoderConfig(Struct, frozen=True, kw_only=True, eq=False):
    """Sizes in entries. For layer i, `ropes[i]` is the rotation of queries and keys (None: none) and
    `windows[i]` the sliding window in tokens (0: full attention). A softcap of 0 means none.
    `parallel`: attention and MLP read the same normed rows. `transposed`: matrices are stored as [inputs,
    outputs]. `bidirectional`: an encoder, whose tokens attend to later tokens as far as to earlier ones; it
    may have `token_types` for text pairs, a position table whose rows before `first_position` are unused, and
    token embeddings of `embedding` entries that a linear layer maps to `hidden`, and `position_buckets` of a
    relative bias, one of them for all distances from `farthest` on. `alibi`: a bias that grows with the
    distance. `qk_norm`: norms of whole queries and keys. Not `gated`: one matrix before the activation.
    """

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
    ropes: tuple[Rope | None, ...]
    windows: tuple[int, ...]
    attention_scale: float
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    parallel: bool = False
    experts: Experts | None = None
    latent: Latent | None = None
    transposed: bool = False
    norm_bias: bool = True
    bidirectional: bool = False
    token_types: int = 0
    first_position: int = 0
    embedding: int = 0
    position_buckets: int = 0
    farthest: int = 0
    alibi: bool = False
    qk_norm: bool = False
    gated: bool = True

    def ahead(self, layer: int) -> int:
        """Number of later keys that a token attends to in a layer."""
        if not self.bidirectional:
            return 0
        return self.windows[layer] - 1 if self.windows[layer] else self.context


def read_decoder(config: Config, *, window: int = 0, rotary_share: float = 1.0) -> DecoderConfig:
    """Read the common fields; a model file adds its own.

    `window` applies to every layer, and RoPE rotates the first `rotary_share` of each head.
    """
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    kv_heads = integer(config, "num_key_value_heads", heads)
    head_dim = integer(config, "head_dim", max(hidden // heads, 1))
    if heads % kv_heads or head_dim % 2:
        raise UnsupportedModel(
            f"config.json: {heads} heads over {kv_heads} key/value heads of {head_dim} entries: heads must be"
            " a multiple of key/value heads, and a head must have an even size"
        )
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
        eps=number(config, "rms_norm_eps", 1e-6, minimum=0.0),
        act=read_act(config, "hidden_act"),
        tied=boolean(config, "tie_word_embeddings", False),
        ropes=(read_rope(config, head_dim, rotary_share),) * layers,
        windows=(window,) * layers,
        attention_scale=head_dim**-0.5,
        bidirectional=not boolean(config, "is_causal", True),
    )


def read_act(config: Config, field: str, default: str = "silu") -> str:
    """Read an activation field; returns its name in ops/act.py."""
    act = text(config, field, default)
    if act not in _ACTS:
        raise UnsupportedModel(f"config.json: {field} '{act}' is not supported; known: {', '.join(_ACTS)}")
    return _ACTS[act]


def read_windows(config: Config, layers: int, window: int, slides: Callable[[int], bool]) -> tuple[int, ...]:
    """Sliding window per layer: from `layer_types`, or `window` where `slides(layer)` is true."""
    types = texts(config, "layer_types")
    if types is None:
        return tuple(window if slides(layer) else 0 for layer in range(layers))
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"config.json: 'layer_types' is {types!r:.120}, expected {layers} known types")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def read_experts(
    config: Config, count_field: str, intermediate: int, layers: tuple[bool, ...], *, normalize: bool
) -> Experts:
    """Read the mixture of experts whose expert count is in field `count_field`."""
    count = integer(config, count_field, maximum=4096)
    top_k = integer(config, "num_experts_per_tok")
    if top_k > count:
        raise UnsupportedModel(f"config.json: num_experts_per_tok {top_k} is more than {count_field} {count}")
    return Experts(count=count, top_k=top_k, intermediate=intermediate, normalize=normalize, layers=layers)
