"""Tensors of a checkpoint that a program does not read: refused, unless they are known to change nothing."""

from __future__ import annotations

import logging
import re

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.models.config_classes import complete
from headrace.models.registry import Model
from headrace.program.program import Program
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.config_json import Config, find, texts
from headrace.weights.tensor_roles import class_of

LOG = logging.getLogger("headrace.loading")
_SHOWN = 3
# Buffers that older versions of `transformers` stored: frequencies, positions, causal masks.
_CONSTANTS = re.compile(
    r"(rotary_emb|rotary|maybe_rotary)\.(inv_freq|(cos|sin)_cached)$|(^|\.)(position|token_type)_ids$"
    r"|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$"
    # Of latent attention, what is also stored in two parts.
    r"|\.kv_b_proj\.weight$"
)
# Scales of activations, keys and values, for programs that quantize these.
_SCALES = re.compile(r"\.(input|output|[qkv]|[kv]_proj\.output|prob)_scale$|\.(input|output)_zero_point$")
# Heads that an encoder was trained with.
_TRAINING_HEADS = re.compile(
    r"(^|\.)pooler\.|^cls\.|^(head|decoder|lm_head|embed_out|vocab_(transform|layer_norm|projector)"
    r"|((generator|discriminator)_)?predictions|sop_classifier|generator_lm_head|(lm|mask)_predictions)\."
)
# Of a masked-LM head: what the program reads as the token table, or from another name.
_COPIES = re.compile(
    r"(^|\.)pooler\.|^(cls\.seq_relationship|sop_classifier)\."
    r"|^((cls\.)?predictions\.|lm_head\.)?(decoder|vocab_projector)\.weight$"
    r"|^((cls\.)?predictions\.|lm_head\.)decoder\.bias$"
)
# Of jina-embeddings-v3, low-rank matrices of each task.
_ADAPTERS = re.compile(r"\.parametrizations\.\w+\.0\.lora_[AB]$")
ADAPTERS, POOLER = "adapters of tasks", "pooler"
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h)\.(\d{1,9})\.")


def check_unread(checkpoint: CheckpointReader, program: Program, model: Model) -> tuple[str, ...]:
    """The parts of an encoder's checkpoint that its task does not need: heads, by what the names of their
    tensors begin with, and adapters. Layers that predict further tokens and copies of a tied matrix are left
    out, too, and named in the log.

    Raises UnsupportedModel, with their count and first names, where tensors would go unread without which
    the model computes something else; CorruptFile where they are layers beyond those of the config.
    """
    unread = _unread(checkpoint, program)
    further = _predicting_layers(checkpoint, model)
    left_out = [name for name in unread if _layer(name) in further]
    if model.pooling is not None:
        left_out += [name for name in unread if _trained_with(name, model, checkpoint.config)]
    else:  # a copy of the token table: config_with_ties has compared them
        left_out += [name for name in unread if name.endswith(".weight") and class_of(name, 2) == "output"]
    if left_out:
        LOG.info("%s tensors are not used: %s", f"{len(left_out):,}", _named(left_out))
    unread = [name for name in unread if name not in set(left_out) and not _is_zero(checkpoint, name)]
    if not unread:
        return _parts(left_out) if model.pooling is not None else ()
    beyond = [name for name in unread if _layer(name) >= model.config.layers]
    if beyond:
        raise CorruptFile(
            f"config.json says that there are {model.config.layers} layers (num_hidden_layers), the"
            f" checkpoint holds {1 + max(map(_layer, beyond))}: correct the field"
        )
    biases = all(name.endswith(".bias") for name in unread)
    remedy = "set attention_bias or mlp_bias if it has biases" if biases else "correct config.json"
    raise UnsupportedModel(
        f"the checkpoint holds {len(unread):,} tensors that a {model.model_type} with this config.json does"
        f" not read: {_named(unread)}: without them it would compute something else; {remedy}, or use a"
        " checkpoint of the plain architecture"
    )


def _says_both(config: Config) -> bool:
    """Whether `architectures` names a base model and a class with a classifier (gte-multilingual-base)."""
    names = texts(config, "architectures") or ()
    return any(name.endswith("Model") for name in names) and any("Classification" in name for name in names)


def _trained_with(name: str, model: Model, config: Config) -> bool:
    """Whether the tensor is of a head or an adapter that the model was trained with and its task does not
    need."""
    if _ADAPTERS.search(name):
        return True
    if name.startswith("classifier.") and model.head is None:
        return _says_both(config)
    pattern = _COPIES if model.head is not None and model.head.kind == "masked_lm" else _TRAINING_HEADS
    return pattern.search(name) is not None


def _parts(names: list[str]) -> tuple[str, ...]:
    """What the tensors are parts of: `lm_head`, `cls.predictions`, `pooler`, and the adapters together."""
    return tuple(sorted({_part(name) for name in names}))


def _part(name: str) -> str:
    if _ADAPTERS.search(name):
        return ADAPTERS
    parts = name.split(".")
    if POOLER in parts:
        return POOLER
    return ".".join(parts[:2]) if parts[0] == "cls" else parts[0]


def _is_zero(checkpoint: CheckpointReader, name: str) -> bool:
    """Whether the tensor is a bias of zeros, which old programs for GPTQ stored for every layer."""
    return name.endswith(".bias") and not checkpoint.float32(name).any()


def _unread(checkpoint: CheckpointReader, program: Program) -> list[str]:
    read: set[str] = set()
    for name in program.weights:
        part, derived = program.parts.get(name), program.derived.get(name)
        tensors = program.stacks.get(name, (name if part is None else part[0],))
        for tensor in tensors if derived is None else (source for source, _ in derived.tensors):
            # As Checkpoint.info: a name may be stored without its first part.
            read.add(tensor if tensor in checkpoint.tensors else tensor.partition(".")[2])
    return [
        name
        for name in checkpoint.tensors
        if name not in read and not _CONSTANTS.search(name) and not _SCALES.search(name)
    ]


def _predicting_layers(checkpoint: CheckpointReader, model: Model) -> range:
    count = find(complete(checkpoint.config), "num_nextn_predict_layers")
    first = model.config.layers
    return range(first, first + count) if isinstance(count, int) else range(0)


def _layer(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1 for none."""
    found = _LAYER.search(name)
    return -1 if found is None else int(found[1])


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name[:120]) for name in sorted(names)[:_SHOWN]) + more
