"""The facts that decoder-only transformers share, read from config.json."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from headrace.errors import UnsupportedModel
from headrace.models.rope import Rope, read_rope
from headrace.weights.config_json import Config, boolean, integer, number, text, texts

_ACTS = {"silu": "silu", "gelu": "gelu"} | dict.fromkeys(
    ("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"
)


class Experts(Struct, frozen=True, kw_only=True):
    """A mixture of `count` MLPs of `intermediate` entries, of which each token uses `top_k`, with shares that
    sum to 1 where they are `normalize`d, times `scale`. `layers[i]` says whether layer i is one, or plain.
    Experts are chosen from the `top_groups` best of `groups` groups; `shared` more are used by every token.
    `transposed`: their matrices are stored as [inputs, outputs]."""

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


class Latent(Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values of all heads come from one row of `kv_rank` entries,
    queries from one of `query_rank` (0: from the hidden row itself). Of a head's query and key, `plain`
    entries do not rotate and `rotary` do, as neighbors where they are `paired`; its value has `value`."""

    query_rank: int
    kv_rank: int
    plain: int
    rotary: int
    value: int
    paired: bool


class DecoderConfig(Struct, frozen=True, kw_only=True, eq=False):
    """Sizes in entries. Of layer i, `ropes[i]` is the rotation of queries and keys (None: none), `windows[i]`
    the sliding window in tokens (0: full attention). A softcap of 0 is none. `parallel`: attention and MLP
    read the same rows. `transposed`: matrices are stored as [inputs, outputs]. `bidirectional`: an encoder,
    whose tokens see what comes after them as far as what comes before; it may have `token_types` for pairs
    of texts."""

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

    def ahead(self, layer: int) -> int:
        """How many later keys a token sees in a layer."""
        if not self.bidirectional:
            return 0
        return self.windows[layer] - 1 if self.windows[layer] else self.context


def read_decoder(
    config: Config, *, window: int = 0, tied: bool = False, rotary_share: float = 1.0
) -> DecoderConfig:
    """The common fields; a model file adds what is its own.

    `window` and a rotation of the first `rotary_share` of each head apply to every layer; `tied` is what
    the absence of `tie_word_embeddings` means.
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
        eps=number(config, "rms_norm_eps", 1e-6),
        act=read_act(config, "hidden_act"),
        tied=boolean(config, "tie_word_embeddings", tied),
        ropes=(read_rope(config, head_dim, rotary_share),) * layers,
        windows=(window,) * layers,
        attention_scale=head_dim**-0.5,
        bidirectional=not boolean(config, "is_causal", True),
    )


def read_act(config: Config, field: str, default: str = "silu") -> str:
    """The activation that a field names, by the name of ops/act.py."""
    act = text(config, field, default)
    if act not in _ACTS:
        raise UnsupportedModel(f"config.json: {field} '{act}' is not supported; known: {', '.join(_ACTS)}")
    return _ACTS[act]


def read_windows(config: Config, layers: int, window: int, slides: Callable[[int], bool]) -> tuple[int, ...]:
    """Sliding windows by layer: `layer_types` where they are listed, else where `slides(layer)`."""
    types = texts(config, "layer_types")
    if types is None:
        return tuple(window if slides(layer) else 0 for layer in range(layers))
    if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"config.json: 'layer_types' is {types!r:.120}, expected {layers} known types")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def read_experts(
    config: Config, count_field: str, intermediate: int, layers: tuple[bool, ...], *, normalize: bool
) -> Experts:
    """The mixture of experts whose number a field names."""
    count = integer(config, count_field, maximum=4096)
    top_k = integer(config, "num_experts_per_tok")
    if top_k > count:
        raise UnsupportedModel(f"config.json: num_experts_per_tok {top_k} is more than {count_field} {count}")
    return Experts(count=count, top_k=top_k, intermediate=intermediate, normalize=normalize, layers=layers)
