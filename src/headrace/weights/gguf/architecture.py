"""What a GGUF architecture is: the names of its tensors and keys in a checkpoint, used in both directions.

Names: gguf-py/gguf/constants.py; rows and numbers: what convert_hf_to_gguf.py of llama.cpp does to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct, field

from headrace.weights.config_json import Config
from headrace.weights.gguf.metadata_keys import MetadataKeys
from headrace.weights.quant_types.block_type import Floats
from headrace.weights.row_order import RowOrder

Names = Mapping[str, str]
Shape = tuple[int, ...]

LAYER_NORM_KEY = "attention.layer_norm_epsilon"
RMS_NORM_KEY = "attention.layer_norm_rms_epsilon"


class TensorTransform(Struct, frozen=True):
    """What a file does to the numbers of a vector, and how to undo it."""

    store: Callable[[Floats], Floats]
    restore: Callable[[Floats], Floats]


class ShapeTransform(Struct, frozen=True):
    """Another shape of the same numbers in a file, and that of the checkpoint."""

    store: Callable[[Shape], Shape]
    restore: Callable[[Shape], Shape]


class ConfigField(Struct, frozen=True):
    """A field of config.json and the key that holds it. A file without the key means `default`, or where that
    is None is refused. Of what is `nullable`, null and 0 stand for nothing, and so does a missing key."""

    name: str
    key: str
    kind: Literal["integer", "number", "flag"] = "integer"
    default: float | None = None
    nullable: bool = False


def no_fields(keys: MetadataKeys, fields: Config) -> Config:
    """What an architecture reads that has nothing of its own."""
    return {}


def no_keys(config: Config) -> dict[str, object]:
    """What an architecture writes that has nothing of its own."""
    return {}


class Architecture(Struct, frozen=True, kw_only=True):
    """`general.architecture` of GGUF and the `model_types` it stands for, the first where a file does not
    say more. Everything here holds for reading and for writing.

    Tensors: `top`, `block` and `experts` map names of a file (in a block: what follows `blk.N.`) to names of
    a checkpoint, without .weight and .bias or, where the two differ in that, with them; one of `experts` is a
    stack of matrices, {} their number. `rows`: the rows of the weights `reordered` are stored in another
    order. `changes` and `shapes`: of names that end so, the numbers or the shapes are others.

    Config: `fields` are its own beside those that all have, some of which have other names in its config.json
    (`aliases`); `biases`: fields that say whether a tensor of the first block (by its name in a file) has a
    bias, where it is there; `forms`: fields that say whether a tensor of the first block (by its name in a
    checkpoint) is there; `epsilon`: field and key; `rotary_share`: the field for the part of a head that
    rotates. `read` gives and `write` takes what no table says; `known`: further keys that `read` minds.
    """

    name: str
    model_types: tuple[str, ...]
    top: Names
    block: Names
    layers: str = "model.layers"
    experts: Names = field(default_factory=dict[str, str])
    rows: RowOrder | None = None
    reordered: tuple[str, ...] = ()
    changes: Mapping[str, TensorTransform] = field(default_factory=dict[str, TensorTransform])
    shapes: Mapping[str, ShapeTransform] = field(default_factory=dict[str, ShapeTransform])

    fields: tuple[ConfigField, ...] = ()
    aliases: Names = field(default_factory=dict[str, str])
    biases: Names = field(default_factory=lambda: {"attention_bias": "attn_q", "mlp_bias": "ffn_gate"})
    forms: Names = field(default_factory=dict[str, str])
    epsilon: tuple[str, str] = ("rms_norm_eps", RMS_NORM_KEY)
    rotary_share: str | None = None
    has_attention: bool = True
    known: frozenset[str] = frozenset()
    read: Callable[[MetadataKeys, Config], Config] = no_fields
    write: Callable[[Config], dict[str, object]] = no_keys

    def minds(self, key: str) -> bool:
        """Whether a key that changes what a model computes is taken into account."""
        return key in self.known or any(key == field.key for field in self.fields)

    def order_of(self, name: str) -> RowOrder | None:
        """How the rows of a checkpoint's tensor are ordered in the file; None as in the checkpoint."""
        return self.rows if name.rpartition(".")[0].endswith(self.reordered or ("\0",)) else None

    def change_of(self, name: str) -> TensorTransform | None:
        """What the file does to the numbers of a checkpoint's vector."""
        return next((change for end, change in self.changes.items() if name.endswith(end)), None)

    def shape_of(self, name: str) -> ShapeTransform | None:
        """What the file does to the shape of a checkpoint's tensor."""
        return next((shape for end, shape in self.shapes.items() if name.endswith(end)), None)


# Parts of names that many architectures share.
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
LLAMA = ATTENTION | PRE_NORMS | MLP
SLIDING_WINDOW = ConfigField("sliding_window", "attention.sliding_window", nullable=True)
