"""The architectures of GGUF files: their tensors' names, and how rows and numbers differ from a checkpoint.

Names: gguf-py/gguf/constants.py; rows and numbers: what convert_hf_to_gguf.py of llama.cpp does to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import prod

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.quant_types.blocks import Floats
from headrace.weights.row_order import RowOrder
from headrace.weights.tensor_file import TensorInfo


class TensorTransform(Struct, frozen=True):
    """What a file does to the numbers of a vector, and how to undo it."""

    store: Callable[[Floats], Floats]
    restore: Callable[[Floats], Floats]


_PLUS_ONE = TensorTransform(lambda w: w + np.float32(1), lambda w: w - np.float32(1))
_DECAY = TensorTransform(
    lambda a: -np.exp(a), lambda a: np.log(-a)
)  # Mamba's A, whose logarithm checkpoints hold


class Architecture(Struct, frozen=True, kw_only=True):
    """`general.architecture` of GGUF and the `model_type` it stands for.

    `top`, `block` and `experts` map names of a file (in a block: what follows `blk.N.`) to names of a
    checkpoint; one of `experts` is a stack of matrices, {} their number. `rows`: the rows of these weights
    are stored in another order. `changes`: of names that end so, the numbers are others.
    """

    name: str
    model_type: str
    top: Mapping[str, str]
    block: Mapping[str, str]
    layers: str = "model.layers"
    experts: Mapping[str, str] = field(default_factory=dict[str, str])
    rows: RowOrder | None = None
    reordered: tuple[str, ...] = ()
    changes: Mapping[str, TensorTransform] = field(default_factory=dict[str, TensorTransform])

    def order_of(self, name: str) -> RowOrder | None:
        """How the rows of a checkpoint's tensor are ordered in the file; None as in the checkpoint."""
        return self.rows if name.rpartition(".")[0].endswith(self.reordered or ("\0",)) else None

    def change_of(self, name: str) -> TensorTransform | None:
        """What the file does to the numbers of a checkpoint's vector."""
        return next((change for end, change in self.changes.items() if name.endswith(end)), None)


_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_LLAMA = _ATTENTION | _PRE_NORMS | _MLP
_SANDWICH = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_QUERIES_AND_KEYS = ("self_attn.q_proj", "self_attn.k_proj")


def _plain(name: str, model_type: str, block: Mapping[str, str]) -> Architecture:
    return Architecture(name=name, model_type=model_type, top=_TOP, block=block)


def _paired(name: str, model_type: str) -> Architecture:
    """As Llama's: of each head, entry j of the first half and entry j of the second are neighbors."""
    return replace(_plain(name, model_type, _LLAMA), rows=RowOrder.PAIRS, reordered=_QUERIES_AND_KEYS)


def _gemma(name: str, model_type: str, block: Mapping[str, str]) -> Architecture:
    return replace(_plain(name, model_type, block), changes={"norm.weight": _PLUS_ONE})


ARCHITECTURES = {
    known.name: known
    for known in (
        _paired("llama", "llama"),
        _plain("qwen2", "qwen2", _LLAMA),
        _plain("qwen3", "qwen3", _LLAMA | _HEAD_NORMS),
        _paired("granite", "granite"),
        _paired("smollm3", "smollm3"),
        _plain(
            "olmo2",
            "olmo2",
            _ATTENTION
            | _HEAD_NORMS
            | _MLP
            | {
                "post_attention_norm": "post_attention_layernorm",
                "post_ffw_norm": "post_feedforward_layernorm",
            },
        ),
        _plain(
            "phi3",
            "phi3",
            _PRE_NORMS
            | {
                "attn_qkv": "self_attn.qkv_proj",
                "attn_output": "self_attn.o_proj",
                "ffn_up": "mlp.gate_up_proj",
                "ffn_down": "mlp.down_proj",
            },
        ),
        _gemma("gemma2", "gemma2", _ATTENTION | _SANDWICH | _MLP),
        _gemma("gemma3", "gemma3_text", _ATTENTION | _HEAD_NORMS | _SANDWICH | _MLP),
        _plain(
            "starcoder2",
            "starcoder2",
            _ATTENTION | _PRE_NORMS | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        ),
        Architecture(
            name="gptneox",
            model_type="gpt_neox",
            top={
                "token_embd": "gpt_neox.embed_in",
                "output_norm": "gpt_neox.final_layer_norm",
                "output": "embed_out",
            },
            block=_PRE_NORMS
            | {
                "attn_qkv": "attention.query_key_value",
                "attn_output": "attention.dense",
                "ffn_up": "mlp.dense_h_to_4h",
                "ffn_down": "mlp.dense_4h_to_h",
            },
            layers="gpt_neox.layers",
            rows=RowOrder.THREE_STACKS,
            reordered=("attention.query_key_value",),
        ),
        Architecture(
            name="gpt2",
            model_type="gpt2",
            top={
                "token_embd": "transformer.wte",
                "position_embd": "transformer.wpe",
                "output_norm": "transformer.ln_f",
                "output": "lm_head",
            },
            block={
                "attn_norm": "ln_1",
                "attn_qkv": "attn.c_attn",
                "attn_output": "attn.c_proj",
                "ffn_norm": "ln_2",
                "ffn_up": "mlp.c_fc",
                "ffn_down": "mlp.c_proj",
            },
            layers="transformer.h",
        ),
        Architecture(
            name="falcon",
            model_type="falcon",
            top={
                "token_embd": "transformer.word_embeddings",
                "output_norm": "transformer.ln_f",
                "output": "lm_head",
            },
            block={
                "attn_norm": "input_layernorm",
                "attn_qkv": "self_attention.query_key_value",
                "attn_output": "self_attention.dense",
                "ffn_up": "mlp.dense_h_to_4h",
                "ffn_down": "mlp.dense_4h_to_h",
            },
            layers="transformer.h",
        ),
        replace(
            _plain("qwen3moe", "qwen3_moe", _LLAMA | _HEAD_NORMS | {"ffn_gate_inp": "mlp.gate"}),
            experts=_EXPERTS,
        ),
        replace(
            _plain(
                "deepseek2",
                "deepseek_v3",
                _PRE_NORMS
                | _MLP
                | {
                    "attn_q": "self_attn.q_proj",
                    "attn_q_a": "self_attn.q_a_proj",
                    "attn_q_a_norm": "self_attn.q_a_layernorm",
                    "attn_q_b": "self_attn.q_b_proj",
                    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
                    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
                    "attn_kv_b": "self_attn.kv_b_proj",
                    "attn_output": "self_attn.o_proj",
                    "ffn_gate_inp": "mlp.gate",
                    "exp_probs_b": "mlp.gate.e_score_correction",
                    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
                    "ffn_up_shexp": "mlp.shared_experts.up_proj",
                    "ffn_down_shexp": "mlp.shared_experts.down_proj",
                },
            ),
            experts=_EXPERTS,
        ),
        Architecture(
            name="mamba2",
            model_type="mamba2",
            top={"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"},
            block={
                "attn_norm": "norm",
                "ssm_in": "mixer.in_proj",
                "ssm_conv1d": "mixer.conv1d",
                "ssm_dt": "mixer.dt",
                "ssm_a": "mixer.A_log",
                "ssm_d": "mixer.D",
                "ssm_norm": "mixer.norm",
                "ssm_out": "mixer.out_proj",
            },
            layers="backbone.layers",
            changes={"mixer.A_log": _DECAY},
        ),
    )
}
# Mixtral's files say that they are a Llama, with experts.
MIXTRAL = replace(
    ARCHITECTURES["llama"],
    model_type="mixtral",
    block=_ATTENTION | _PRE_NORMS | {"ffn_gate_inp": "block_sparse_moe.gate"},
    experts={
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
)
# Spellings that do not end in .weight or .bias, or that a checkpoint joins otherwise.
_ENDINGS = {
    "mlp.gate.e_score_correction.bias": "mlp.gate.e_score_correction_bias",
    "mixer.dt.bias": "mixer.dt_bias",
    "mixer.A_log": "mixer.A_log",
    "mixer.D": "mixer.D",
}
_BLOCK_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z0-9_]+?)(\.weight|\.bias|)")
_TOP_NAME = re.compile(r"([a-z_]+)(\.weight|\.bias)")


def by_model_type(model_type: str) -> Architecture:
    """The architecture whose GGUF files stand for a `model_type`; UnsupportedModel where there is none."""
    known = {architecture.model_type: architecture for architecture in (*ARCHITECTURES.values(), MIXTRAL)}
    known["mistral"] = known["llama"]
    if model_type not in known:
        raise UnsupportedModel(
            f"model_type {model_type!r} has no GGUF architecture here; known: {', '.join(known)}"
        )
    return known[model_type]


def named_tensors(
    info: TensorInfo, architecture: Architecture, file: str
) -> Iterator[tuple[str, TensorInfo]]:
    """What a file's tensor is called in a checkpoint: one tensor, or one for each expert of a stack.

    UnsupportedModel where it has no place in the architecture.
    """
    block = _BLOCK_NAME.fullmatch(info.name)
    if block is not None and block[2] in architecture.experts:
        yield from _experts(
            info, f"{architecture.layers}.{block[1]}.{architecture.experts[block[2]]}{block[3]}"
        )
        return
    top = _TOP_NAME.fullmatch(info.name)
    if block is not None and block[2] in architecture.block:
        stem = architecture.block[block[2]] + block[3]
        ending = _ENDINGS.get(stem, stem)
        yield f"{architecture.layers}.{block[1]}.{ending}", _as_in_checkpoint(info, ending)
    elif top is not None and top[1] in architecture.top:
        yield architecture.top[top[1]] + top[2], info
    else:
        raise UnsupportedModel(
            f"{file} holds the tensor {info.name!r}, for which this architecture has no place here: use a "
            "checkpoint of the plain model"
        )


def stored_name(name: str, architecture: Architecture) -> tuple[str, int | None]:
    """The reverse: what a file calls a checkpoint's tensor, and its number in a stack of experts."""
    ending = next((spelt for spelt, joined in _ENDINGS.items() if name.endswith(joined)), None)
    if ending is not None:
        name = name[: -len(_ENDINGS[ending])] + ending
    stem, _, suffix = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "")
    suffix = suffix and f".{suffix}"
    for ours, theirs in architecture.top.items():
        if stem == theirs:
            return ours + suffix, None
    layer = re.fullmatch(re.escape(architecture.layers) + r"\.(\d+)\.(.+)", stem)
    if layer is not None:
        for ours, theirs in architecture.block.items():
            if layer[2] == theirs:
                return f"blk.{layer[1]}.{ours}{suffix}", None
        for ours, theirs in architecture.experts.items():
            expert = re.fullmatch(re.escape(theirs).replace(r"\{\}", r"(\d+)"), layer[2])
            if expert is not None:
                return f"blk.{layer[1]}.{ours}{suffix}", int(expert[1])
    raise UnsupportedModel(
        f"the tensor {name!r} has no name in GGUF files of {architecture.name}: write safetensors instead"
    )


def _experts(info: TensorInfo, name: str) -> Iterator[tuple[str, TensorInfo]]:
    if len(info.shape) < 2 or not info.shape[0]:
        raise CorruptFile(f"{info.name} has the shape {info.shape}, one matrix for each expert expected")
    nbytes = info.nbytes // info.shape[0]
    for expert in range(info.shape[0]):
        part = replace(info, shape=info.shape[1:], nbytes=nbytes, offset=info.offset + expert * nbytes)
        yield name.format(expert), part


def _as_in_checkpoint(info: TensorInfo, ending: str) -> TensorInfo:
    """Mamba's files give some vectors and the convolution other dimensions."""
    if ending in ("mixer.A_log", "mixer.D", "mixer.norm.weight"):
        return replace(info, shape=(prod(info.shape),))
    if ending == "mixer.conv1d.weight" and len(info.shape) == 2:
        return replace(info, shape=(info.shape[0], 1, info.shape[1]))
    return info
