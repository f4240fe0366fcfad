"""Names and config of a text model, where a folder's files have others: inside a model for images and text,
as `transformers` 5 holds them in memory (save_pretrained with save_original_format=False), or of old times.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import cast

from msgspec.structs import replace

from headrace.weights.config_json import Config, find, refused
from headrace.weights.tensor_file import MAX_STACKED, TensorInfo

LOG = logging.getLogger("headrace.weights")
WRAPPED = {"gemma3": "gemma3_text"}
"""Model types for images and text, and those of their text models."""
_OF_CLASS = {"XLMRobertaFlashConfig": "xlm-roberta"}
_OF_WRAPPER = ("architectures", "dtype", "torch_dtype", "quantization_config", "compression_config")
_TEXT = re.compile(r"^(?:model\.)?language_model\.(?:model\.)?(?!lm_head\.)")
_OUTPUT = re.compile(r"^language_model\.(?=lm_head\.)")
_IMAGES = re.compile(r"^(?:model\.)?(?:vision_tower|multi_modal_projector)\.")

_NORM = re.compile(r"(?<=\.LayerNorm\.)(gamma|beta)$")  # of BERT's first checkpoints
# First parts of names that mean the base model, in checkpoints with a head.
_BASE = {
    "nomic_bert": re.compile(r"^(?:nomic_)?bert\."),
    "gte": re.compile(r"^(?:gte|new)\."),
    "new": re.compile(r"^(?:gte|new)\."),
    "t5": re.compile(r"^transformer\."),
    "mt5": re.compile(r"^transformer\."),
}
_ADAPTED = re.compile(r"\.parametrizations\.(\w+)\.original$")  # of jina-embeddings-v3, beside its adapters
_T5_TABLE, _T5_COPY = "shared.weight", "encoder.embed_tokens.weight"
_MIXTRAL = ("block_sparse_moe", ("w1", "w3", "w2"))
_PLAIN = ("mlp", ("gate_proj", "up_proj", "down_proj"))
_EXPERTS = {"mixtral": _MIXTRAL, "qwen3_moe": _PLAIN, "deepseek_v2": _PLAIN, "deepseek_v3": _PLAIN}
"""Where a layer's experts are, and what an expert's gate, up and down projections are called."""
_STACKED = re.compile(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj)")


def text_model_config(config: Config) -> Config:
    """The config of the text model in a model for images and text; any other as it is, with the model type
    that its class means where it has none (jina-reranker-v2)."""
    model_type = config.get("model_type")
    if model_type is None:
        named = str(find(config, "auto_map.AutoConfig")).rpartition(".")[2]
        return config | {"model_type": _OF_CLASS[named]} if named in _OF_CLASS else config
    if not isinstance(model_type, str) or model_type not in WRAPPED:
        return config
    text = find(config, "text_config")
    if text is not None and not isinstance(text, dict):
        raise refused("text_config", text, "an object")
    tied = find(config, "tie_word_embeddings")
    return {
        **{name: config[name] for name in _OF_WRAPPER if name in config},
        **cast("Config", text or {}),
        "model_type": WRAPPED[model_type],
        "tie_word_embeddings": True if tied is None else tied,
    }


def plain_tensors(tensors: Mapping[str, TensorInfo], model_type: object) -> dict[str, TensorInfo]:
    """The tensors by the names that a checkpoint of the text model `model_type` has; those that read images
    are left out."""
    if model_type in WRAPPED.values():
        return _text_tensors(tensors)
    if model_type == "bert":
        return {_NORM.sub(_norm_name, name): info for name, info in tensors.items()}
    if model_type == "xlm-roberta":
        return {_ADAPTED.sub(r".\1", name): info for name, info in tensors.items()}
    if model_type in _BASE:
        return _of_base(tensors, _BASE[str(model_type)])
    if model_type == "gpt_neox" and "embed_out.weight" not in tensors:
        return {re.sub(r"^lm_head\.", "embed_out.", name): info for name, info in tensors.items()}
    if not isinstance(model_type, str) or model_type not in _EXPERTS:
        return dict(tensors)
    place, names = _EXPERTS[model_type]
    return {
        name: info
        for stored in tensors.items()
        for name, info in _experts(*stored, place=place, projections=names)
    }


def _of_base(tensors: Mapping[str, TensorInfo], base: re.Pattern[str]) -> dict[str, TensorInfo]:
    """The tensors without the first part that means the base model, and T5's token table by one name."""
    plain = {base.sub("", name): info for name, info in tensors.items()}
    if _T5_COPY in plain:
        table = plain.pop(_T5_COPY)
        plain.setdefault(_T5_TABLE, table)
    return plain


def _norm_name(found: re.Match[str]) -> str:
    return "weight" if found[1] == "gamma" else "bias"


def _text_tensors(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    found = {
        _TEXT.sub("model.", _OUTPUT.sub("", name)): info
        for name, info in tensors.items()
        if not _IMAGES.search(name)
    }
    if len(found) < len(tensors):
        LOG.info("%s tensors for images are left out: only text is read", f"{len(tensors) - len(found):,}")
    return found


def _experts(
    name: str, info: TensorInfo, *, place: str, projections: tuple[str, str, str]
) -> Iterator[tuple[str, TensorInfo]]:
    """One tensor for each expert and projection of a stack; another tensor under its plain name."""
    stacked = _STACKED.fullmatch(name)
    parts = projections[:2] if stacked is not None and stacked[2] == "gate_up_proj" else projections[2:]
    whole = len(info.shape) == 3 and 0 < info.shape[0] <= MAX_STACKED and not info.shape[1] % len(parts)
    if stacked is None or not whole or not info.nbytes:
        yield re.sub(r"\.mlp\.gate\.", f".{place}.gate.", name), info
        return
    count, rows, inputs = info.shape
    nbytes = info.nbytes // (count * len(parts))
    for number in range(count * len(parts)):
        expert, part = divmod(number, len(parts))
        yield (
            f"{stacked[1]}.{place}.experts.{expert}.{parts[part]}.weight",
            replace(
                info,
                shape=(rows // len(parts), inputs),
                nbytes=nbytes,
                offset=info.offset + number * nbytes,
            ),
        )
