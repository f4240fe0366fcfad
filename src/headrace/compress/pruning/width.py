"""Channels of MLPs, heads of attention and experts that are left out (Minitron, Muralidharan et al. 2024)."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from headrace.compress.pruning.cut_checkpoint import Cut, Kept, uncut
from headrace.compress.pruning.importance import Importance, Scores, transformer_of
from headrace.errors import UnsupportedModel, UsageError
from headrace.models.decoder_config import DecoderConfig
from headrace.ops.value import Ints
from headrace.weights.checkpoint_reader import CheckpointReader

STEP = 32
"""MLPs keep a multiple of so many channels: formats of few bits have groups of 32 inputs."""
_FFN = (
    (".mlp.down_proj.weight", (".mlp.gate_proj", ".mlp.up_proj")),
    (".mlp.c_proj.weight", (".mlp.c_fc",)),
    (".mlp.dense_4h_to_h.weight", (".mlp.dense_h_to_4h",)),
)
_EXPERT = re.compile(r"^(.*\.experts\.)(\d+)(\..*)$")
_ROUTERS = (".gate.weight", ".gate.bias", ".gate.e_score_correction_bias", ".router.weight", ".router.bias")


class WidthReport(Struct, frozen=True):
    """Of each layer: how many parts there were, how many are left, and what share of the scores these have,
    in the layer that loses most."""

    before: int
    after: int
    least_share: float


def cut_ffn(source: CheckpointReader, found: Importance, share: float) -> tuple[Cut, WidthReport]:
    """A checkpoint whose MLPs have `share` of their channels. UnsupportedModel where they are stored
    otherwise."""
    config = transformer_of(source, "--ffn")
    form = next(
        (
            (down, ups)
            for down, ups in _FFN
            if any(name.endswith(down) for name in source.tensors)
            and all(any(name.endswith(f"{up}.weight") for name in source.tensors) for up in ups)
        ),
        None,
    )
    downs = [] if form is None else [name for name in source.tensors if name.endswith(form[0])]
    if form is None or len(downs) != config.layers:
        raise UnsupportedModel(
            f"--ffn prunes MLPs with matrices of their own in each layer, which {_type(source)} does not"
            " have" + (": --experts leaves out experts" if config.experts else "")
        )
    size = config.intermediate
    left = int(size * share) // STEP * STEP if size % STEP == 0 else int(size * share)
    if not 0 < left < size:
        raise UsageError(f"--ffn {share} leaves {left} of {size} channels of each MLP", param="ffn")
    kept, shares, names = dict[str, Kept](), list[float](), uncut(source).names
    for down in downs:
        stem = down.removesuffix(form[0])
        inner = [f"{stem}{up}{part}" for up in form[1] for part in (".weight", ".bias")]
        inner = [name for name in inner if name in source.tensors]
        if source.info(down).shape != (config.hidden, size) or any(
            source.info(name).shape[0] != size for name in inner
        ):
            raise UnsupportedModel(
                f"--ffn: {down} has the shape {source.info(down).shape}, which is not known"
            )
        norms = _scores(found, down) * np.linalg.norm(source.float32(down), axis=0)
        stay, part = _best(norms, left)
        shares.append(part)
        kept[down] = ((1, stay),)
        kept |= dict.fromkeys(inner, ((0, stay),))
    field = "ffn_hidden_size" if _type(source) == "falcon" else "intermediate_size"
    cut = Cut(source.config | {field: left}, names, kept)
    return cut, WidthReport(size, left, min(shares))


def cut_heads(source: CheckpointReader, found: Importance, count: int) -> tuple[Cut, WidthReport]:
    """A checkpoint with `count` query heads in each layer: as many of each group that shares a key and value
    head, or, where that does not divide, whole groups. UnsupportedModel where they are stored otherwise."""
    config = transformer_of(source, "--heads")
    at = ".self_attn.o_proj.weight"
    outs = [name for name in source.tensors if name.endswith(at)]
    group = config.heads // config.kv_heads
    in_groups = group > 1 and count % config.kv_heads == 0
    if len(outs) != config.layers or config.latent is not None or config.qk_norm:
        raise UnsupportedModel(
            f"--heads prunes attention with q_proj, k_proj, v_proj and o_proj, which {_type(source)} does not"
            " have"
        )
    if not 0 < count < config.heads or not (in_groups or count % group == 0):
        raise UsageError(
            f"--heads {count}: this model has {config.heads} query heads over {config.kv_heads} heads of keys"
            f" and values; give a smaller multiple of {config.kv_heads} or of {group}",
            param="heads",
        )
    kept, shares = dict[str, Kept](), list[float]()
    for out in outs:
        stem = out.removesuffix("o_proj.weight")
        known = {f"{stem}{name}_proj.weight" for name in "qkv"} <= source.tensors.keys()
        norm = f"{stem}q_norm.weight"
        is_whole = norm in source.tensors and source.info(norm).shape != (config.head_dim,)
        if not known or is_whole or f"{stem}sinks" in source.tensors:
            raise UnsupportedModel(f"--heads: the attention of {_type(source)} has parts that are not known")
        norms = _scores(found, out) * np.linalg.norm(source.float32(out), axis=0)
        heads = np.square(norms).reshape(config.heads, config.head_dim).sum(axis=1)
        queries, pairs, part = _heads(heads, config, count, in_groups=in_groups)
        shares.append(part)
        kept[out] = ((1, _entries(queries, config.head_dim)),)
        for name, which in (("q_proj", queries), ("k_proj", pairs), ("v_proj", pairs)):
            for tensor in (f"{stem}{name}.weight", f"{stem}{name}.bias"):
                if tensor in source.tensors:
                    kept[tensor] = ((0, _entries(which, config.head_dim)),)
    fields: dict[str, object] = {"num_attention_heads": count, "head_dim": config.head_dim}
    fields["num_key_value_heads"] = config.kv_heads if in_groups else count // group
    cut = Cut(source.config | fields, uncut(source).names, kept)
    return cut, WidthReport(config.heads, count, min(shares))


def cut_experts(source: CheckpointReader, found: Importance, count: int) -> tuple[Cut, WidthReport]:
    """A checkpoint with `count` experts in each mixture: those whose gates add up to most on the text."""
    config = transformer_of(source, "--experts")
    experts = config.experts
    if experts is None or not found.gates:
        raise UnsupportedModel(f"--experts: {_type(source)} is no mixture of experts")
    if experts.groups > 1:
        raise UnsupportedModel(
            f"--experts: the experts of {_type(source)} are in {experts.groups} groups, of which none can be"
            " left out"
        )
    if not experts.top_k <= count < experts.count:
        raise UsageError(
            f"--experts {count}: this model has {experts.count} in each layer, of which a token uses"
            f" {experts.top_k}: give a number from {experts.top_k} to {experts.count - 1}",
            param="experts",
        )
    chosen = {layer: _best(scores, count) for layer, scores in found.gates.items()}
    names, kept = dict[str, str](), dict[str, Kept]()
    for name, info in source.tensors.items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        stay = chosen.get(int(layer[1]), (None, 0))[0] if layer is not None else None
        one = _EXPERT.match(name)
        if stay is None or (one is None and not _is_of_all(name, info.shape, experts.count)):
            names[name] = name
        elif one is None:
            names[name] = name
            kept[name] = ((0, stay),)
        elif (place := np.flatnonzero(stay == int(one[2]))).size:
            names[f"{one[1]}{int(place[0])}{one[3]}"] = name
    field = _field(source, "num_local_experts", "num_experts", "n_routed_experts")
    cut = Cut(source.config | {field: count}, names, kept)
    return cut, WidthReport(experts.count, count, min(share for _, share in chosen.values()))


def unreached(found: Importance) -> int:
    """Experts that no token of the text chose."""
    return sum(int((scores == 0).sum()) for scores in found.gates.values())


def _is_of_all(name: str, shape: tuple[int, ...], count: int) -> bool:
    """Routers, and tensors that hold the matrices of all experts of a layer."""
    is_fused = ".experts." in name and "shared_experts" not in name
    return shape[0] == count and (is_fused or name.endswith(_ROUTERS))


def _heads(scores: Scores, config: DecoderConfig, count: int, *, in_groups: bool) -> tuple[Ints, Ints, float]:
    """The query heads that stay, those of keys and values, and the share of the scores."""
    group = config.heads // config.kv_heads
    by_group = scores.reshape(config.kv_heads, group)
    whole = float(scores.sum()) or 1.0
    if not in_groups:
        pairs, share = _best(by_group.sum(axis=1), count // group)
        queries = (pairs[:, None] * group + np.arange(group, dtype=np.int32)).reshape(-1)
        return queries.astype(np.int32), pairs, share
    best = [_best(row, count // config.kv_heads)[0] + index * group for index, row in enumerate(by_group)]
    queries = np.concatenate(best).astype(np.int32)
    return queries, np.arange(config.kv_heads, dtype=np.int32), float(scores[queries].sum()) / whole


def _entries(heads: Ints, size: int) -> Ints:
    return (heads[:, None] * size + np.arange(size, dtype=np.int32)).reshape(-1).astype(np.int32)


def _best(scores: Scores, count: int) -> tuple[Ints, float]:
    """The places of the `count` highest, ascending; what share of all they have."""
    order = np.argsort(-scores, kind="stable")[:count]
    return np.sort(order).astype(np.int32), float(scores[order].sum() / (scores.sum() or 1.0))


def _scores(found: Importance, name: str) -> Scores:
    scores = found.inputs.get(name)
    if scores is None:
        raise UnsupportedModel(f"{name} is no matrix of a linear layer of its own: it cannot be pruned")
    return scores


def _field(source: CheckpointReader, *names: str) -> str:
    return next((name for name in names if name in source.config), names[0])


def _type(source: CheckpointReader) -> str:
    return str(source.config.get("model_type"))
