"""What a tensor is called in a GGUF file and in a checkpoint, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.gguf.architecture import Architecture, Names
from headrace.weights.tensor_file import MAX_STACKED, TensorInfo

_NUMBER = re.compile(r"blk\.(\d{1,9})\.")
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z0-9_]+(?:\.weight|\.bias|))")


def block_of(name: str) -> int:
    """The number of the block that a file's tensor belongs to; -1 for none."""
    found = _NUMBER.match(name)
    return -1 if found is None else int(found[1])


def named_tensors(
    info: TensorInfo, architecture: Architecture, file: str
) -> Iterator[tuple[str, TensorInfo]]:
    """What a file's tensor is called in a checkpoint: one tensor, or one for each expert of a stack.

    UnsupportedModel where it has no place in the architecture.
    """
    block = _BLOCK.fullmatch(info.name)
    layer = "" if block is None else f"{architecture.layers}.{block[1]}."
    if block is not None and (experts := _renamed(block[2], architecture.experts)) is not None:
        yield from _experts(info, layer + experts)
        return
    name = _renamed(
        info.name if block is None else block[2], architecture.block if block else architecture.top
    )
    if name is None:
        raise UnsupportedModel(
            f"{file} holds the tensor {info.name!r}, for which this architecture has no place here: use a "
            "checkpoint of the plain model"
        )
    shape = architecture.shape_of(name)
    yield layer + name, info if shape is None else replace(info, shape=shape.restore(info.shape))


def stored_name(name: str, architecture: Architecture) -> tuple[str, int | None]:
    """The reverse: what a file calls a checkpoint's tensor, and its number in a stack of experts."""
    top = _renamed(name, _reversed(architecture.top))
    if top is not None:
        return top, None
    layer = re.fullmatch(re.escape(architecture.layers) + r"\.(\d+)\.(.+)", name)
    if layer is not None:
        block = _renamed(layer[2], _reversed(architecture.block))
        if block is not None:
            return f"blk.{layer[1]}.{block}", None
        for ours, theirs in architecture.experts.items():
            pattern = re.escape(theirs).replace(r"\{\}", r"(\d+)") + r"(\.weight|\.bias)"
            expert = re.fullmatch(pattern, layer[2])
            if expert is not None:
                return f"blk.{layer[1]}.{ours}{expert[2]}", int(expert[1])
    raise UnsupportedModel(
        f"the tensor {name!r} has no name in GGUF files of {architecture.name}: write safetensors instead"
    )


def _renamed(name: str, names: Names) -> str | None:
    """The name that `names` gives, as a whole or to what stands before .weight or .bias."""
    if name in names:
        return names[name]
    stem, dot, suffix = name.rpartition(".")
    return f"{names[stem]}.{suffix}" if dot and suffix in ("weight", "bias") and stem in names else None


def _reversed(names: Names) -> Names:
    return {theirs: ours for ours, theirs in names.items()}


def _experts(info: TensorInfo, name: str) -> Iterator[tuple[str, TensorInfo]]:
    if len(info.shape) < 2 or not 0 < info.shape[0] <= MAX_STACKED:
        raise CorruptFile(
            f"{info.name} has the shape {info.shape}, one matrix for each of at most {MAX_STACKED:,} experts"
            " or heads expected"
        )
    nbytes = info.nbytes // info.shape[0]
    for expert in range(info.shape[0]):
        part = replace(info, shape=info.shape[1:], nbytes=nbytes, offset=info.offset + expert * nbytes)
        yield name.format(expert), part
