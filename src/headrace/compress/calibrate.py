"""Rounds the matrices of a checkpoint on a calibration text, layer after layer; what is done is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from headrace.compress.gptq import Moments, gptq
from headrace.compress.grids import Grid, RotatedInt4
from headrace.compress.kept import Kept
from headrace.compress.rotated import gptq_rotated
from headrace.compress.walk import walk
from headrace.errors import UsageError
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.tied_output import config_with_ties
from headrace.models.registry import find_model
from headrace.ops.value import Array, Ints
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quant_types.block_type import Bytes, Floats

_VERSION = 2
"""Changes when the same order would give other bytes."""


class CalibrationOrder(Struct, frozen=True, kw_only=True):
    """Windows [N, L] of tokens; the grid of each matrix by its name in the checkpoint, None where it is not
    to be rounded; a name for `type`, and the folder in which finished matrices are kept, so that a run that
    was killed goes on. `observe` is told of the sums of squares [k] of each matrix' inputs."""

    windows: Ints
    grid_of: Callable[[str], Grid | RotatedInt4 | None]
    type: str
    work: Path
    observe: Callable[[str, Moments], None] | None = None

    def check(self) -> None:
        """UsageError where the text has too few tokens."""
        if self.windows.size < 2:
            raise UsageError(
                f"the calibration text has {self.windows.size} tokens, at least 2 are needed",
                param="calibrate",
            )

    def key(self, fingerprint: str) -> bytes:
        """What finished matrices depend on."""
        said = f"{_VERSION} {fingerprint} {self.type} {self.windows.shape}".encode()
        return said + self.windows.astype("<i4").tobytes()

    def grids(self, checkpoint: CheckpointReader) -> dict[str, Grid | RotatedInt4]:
        """Of each matrix that is to be rounded."""
        return {name: grid for name in checkpoint.tensors if (grid := self.grid_of(name)) is not None}


class Calibrated(Struct, frozen=True):
    """The rows' bytes of each matrix by name, [n, bytes of a row]; how much of its products each has lost
    (gptq.Rounded); the matrices that were to be rounded and have no inputs of their own, such as those of
    experts: they are rounded without a text."""

    ready: dict[str, Bytes]
    losses: dict[str, float]
    left: tuple[str, ...]


def calibrate(
    checkpoint: CheckpointReader, order: CalibrationOrder, progress: Callable[[int, int], None]
) -> Calibrated:
    """Round every matrix that a linear layer has and that `order` gives a grid. UsageError where the text has
    too few tokens; the errors of gptq."""
    order.check()
    program = verify(record(find_model(config_with_ties(checkpoint)).define))
    wanted = order.grids(checkpoint)
    targets = linear_matrices(program, set(wanted))
    kept = Kept(order.work, order.key(checkpoint.fingerprint))
    weights = ProgramWeights(checkpoint, program)
    found, losses = dict[str, Bytes](), dict[str, float]()

    def round_(name: str, moments: Moments) -> Array:
        grid = wanted[name]
        progress(len(found), len(targets))
        if order.observe is not None:
            order.observe(name, np.diag(moments))
        stored = kept.read(name)
        if stored is None:
            weight = weights.float32(name)
            if isinstance(grid, RotatedInt4):
                rounded = gptq_rotated(weight, moments, name=name)
            else:
                rounded = gptq(weight, moments, grid, name=name)
            stored = {"data": rounded.data, "loss": np.array(rounded.loss)}
            kept.write(name, stored)
        found[name], losses[name] = stored["data"], float(stored["loss"])
        values: Floats = grid.unpack(found[name])
        return values

    if targets:
        walk(program, weights, order.windows, targets, round_)
    progress(len(targets), len(targets))
    return Calibrated(found, losses, tuple(sorted(set(wanted) - targets)))


def observe_inputs(
    checkpoint: CheckpointReader,
    windows: Ints,
    names: frozenset[str],
    seen: Callable[[str, Array, Moments], None],
    progress: Callable[[int, int], None],
) -> None:
    """Tell `seen` of every matrix of `names` that a linear layer has, its numbers and the second moments of
    its inputs; nothing is rounded."""
    program = verify(record(find_model(config_with_ties(checkpoint)).define))
    weights, targets, done = ProgramWeights(checkpoint, program), linear_matrices(program, set(names)), [0]

    def look(name: str, moments: Moments) -> Array:
        progress(done[0], len(targets))
        done[0] += 1
        values = weights.float32(name)
        seen(name, values, moments)
        return values

    if targets:
        walk(program, weights, windows, targets, look)
    progress(len(targets), len(targets))


def linear_matrices(program: Program, wanted: set[str]) -> frozenset[str]:
    """Of the wanted matrices those that a linear layer has as they are stored."""
    changed = program.parts.keys() | program.stacks.keys() | program.derived.keys()
    of_linears = {
        weight.name
        for instruction in program.expanded()
        if instruction.name == "linear" and (weight := instruction.inputs[1]) is not None
    }
    return frozenset((wanted & of_linears) - changed)
