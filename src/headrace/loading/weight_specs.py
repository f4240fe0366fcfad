"""Which format each matrix of a program is packed in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from headrace.errors import CorruptFile
from headrace.loading.options import EngineOptions
from headrace.program.program import Program
from headrace.weights.checkpoint_reader import TensorReader
from headrace.weights.hub.bundled import bundled_weights
from headrace.weights.packing.packed_weights import WeightSpec, format_of, predicted_bytes
from headrace.weights.quant_types import WITHOUT_KERNEL
from headrace.weights.tensor_roles import class_of

LOG = logging.getLogger("headrace.loading")
# A router is a thousandth of its layer, and a choice that rounding has changed changes everything after it.
COARSE = ("int8", "int4")
MAX_TABLE_SHARE = 0.25
TABLES = ("token table", "output")


def weight_specs(
    program: Program, checkpoint: TensorReader, options: EngineOptions, folder: Path
) -> tuple[WeightSpec, ...]:
    """The matrices to pack, in the program's order; CorruptFile where a tensor has another shape,
    UnsupportedModel where it has an element type that is none of weights. `folder` is the model's."""
    wanted: list[WeightSpec] = []
    choice = (bundled_weights(folder) or "keep") if options.quantization == "auto" else options.quantization
    routers = _routers(program)
    for name, value in program.weights.items():
        info = checkpoint.info(name)
        if tuple(info.shape) != value.shape:
            raise CorruptFile(
                f"tensor {name} has shape {tuple(info.shape)}, config.json implies {value.shape}: "
                "the weights do not belong to this config"
            )
        if len(value.shape) == 2:
            n, k = int(value.shape[0]), int(value.shape[1])
            checkpoint.row_dtype(name)  # names a tensor that has no numbers
            format = format_of(choice, info.dtype)
            wanted.append(WeightSpec(name, n, k, "bf16" if name in routers and format in COARSE else format))
    _tell_widened(program, checkpoint, choice)
    return with_finer_tables(tuple(wanted)) if choice == "int4" else tuple(wanted)


def in_int4(wanted: Sequence[WeightSpec]) -> tuple[WeightSpec, ...]:
    """What int8 matrices are where a model is loaded in int4."""
    return with_finer_tables(
        tuple(replace(one, format="int4") if one.format == "int8" else one for one in wanted)
    )


def with_finer_tables(wanted: tuple[WeightSpec, ...]) -> tuple[WeightSpec, ...]:
    """Token table and output matrix in 8 bits, where that adds at most a quarter to all bytes: half of what
    int4 loses is theirs (decision 0086)."""
    finer = tuple(
        replace(one, format="int8") if one.format == "int4" and class_of(one.name, 2) in TABLES else one
        for one in wanted
    )
    return finer if predicted_bytes(finer) <= (1 + MAX_TABLE_SHARE) * predicted_bytes(wanted) else wanted


def _tell_widened(program: Program, checkpoint: TensorReader, choice: str) -> None:
    kinds = {checkpoint.info(name).dtype for name in program.weights} & WITHOUT_KERNEL
    if kinds and choice == "keep":
        LOG.info(
            "weights of the type %s run as int8: there are no kernels for them", ", ".join(sorted(kinds))
        )


def _routers(program: Program) -> set[str]:
    """The matrices whose products choose experts."""
    logits = {ins.inputs[0] for ins in program.expanded() if ins.name == "route"}
    routers = {ins.inputs[1] for ins in program.expanded() if not logits.isdisjoint(ins.outputs)}
    return {router.name for router in routers if router is not None}
