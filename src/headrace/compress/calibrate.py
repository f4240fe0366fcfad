"""Rounds the matrices of a checkpoint on a calibration text, layer after layer; what is done is kept."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from headrace.compress.gptq import Moments, gptq
from headrace.compress.grids import Grid, RotatedInt4
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

_VERSION = 1
"""Changes when the same order would give other bytes."""


class CalibrationOrder(Struct, frozen=True, kw_only=True):
    """Windows [N, L] of tokens; the grid of each matrix by its name in the checkpoint, None where it is not
    to be rounded; a name for `type`, and the folder in which finished matrices are kept, so that a run that
    was killed goes on. `observe` is told of the second moments of each matrix' inputs."""

    windows: Ints
    grid_of: Callable[[str], Grid | RotatedInt4 | None]
    type: str
    work: Path
    observe: Callable[[str, Moments], None] | None = None


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
    if order.windows.size < 2:
        raise UsageError(
            f"the calibration text has {order.windows.size} tokens, at least 2 are needed", param="calibrate"
        )
    model = find_model(config_with_ties(checkpoint))
    program = verify(record(model.define))
    wanted = {name: grid for name in checkpoint.tensors if (grid := order.grid_of(name)) is not None}
    targets = _targets(program, set(wanted))
    kept = _Kept(order, checkpoint.fingerprint)
    weights = ProgramWeights(checkpoint, program)
    found, losses = dict[str, Bytes](), dict[str, float]()

    def round_(name: str, moments: Moments) -> Array:
        grid = wanted[name]
        progress(len(found), len(targets))
        if order.observe is not None:
            order.observe(name, moments)
        data, loss = kept.read(name)
        if data is None:
            weight = weights.float32(name)
            if isinstance(grid, RotatedInt4):
                rounded = gptq_rotated(weight, moments, name=name)
            else:
                rounded = gptq(weight, moments, grid, name=name)
            data, loss = rounded.data, rounded.loss
            kept.write(name, data, loss)
        found[name], losses[name] = data, loss
        values: Floats = grid.unpack(data)
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
    weights, targets, done = ProgramWeights(checkpoint, program), _targets(program, set(names)), [0]

    def look(name: str, moments: Moments) -> Array:
        progress(done[0], len(targets))
        done[0] += 1
        values = weights.float32(name)
        seen(name, values, moments)
        return values

    if targets:
        walk(program, weights, windows, targets, look)
    progress(len(targets), len(targets))


def _targets(program: Program, wanted: set[str]) -> frozenset[str]:
    """Of the wanted matrices those that a linear layer has as they are stored."""
    changed = program.parts.keys() | program.stacks.keys() | program.derived.keys()
    of_linears = {
        weight.name
        for instruction in program.expanded()
        if instruction.name == "linear" and (weight := instruction.inputs[1]) is not None
    }
    return frozenset((wanted & of_linears) - changed)


class _Kept:
    """Finished matrices in a folder, which belongs to one order."""

    def __init__(self, order: CalibrationOrder, fingerprint: str) -> None:
        said = f"{_VERSION} {fingerprint} {order.type} {order.windows.shape}".encode()
        key = hashlib.sha256(said + order.windows.astype("<i4").tobytes()).hexdigest()
        self._folder = order.work / key
        if order.work.is_dir():  # of another text or type: it is of no use any more
            for other in order.work.iterdir():
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> tuple[Bytes | None, float]:
        file = self._folder / _file_name(name)
        if not file.is_file():
            return None, 0.0
        with np.load(file, allow_pickle=False) as stored:
            return np.array(stored["data"], np.uint8), float(stored["loss"])

    def write(self, name: str, data: Bytes, loss: float) -> None:
        """Whole or not at all."""
        file = self._folder / _file_name(name)
        part = file.with_suffix(".part")
        with part.open("wb") as out:
            np.savez(out, data=data, loss=np.float64(loss))
        part.replace(file)


def _file_name(name: str) -> str:
    """Names of tensors may be longer than those of files, or hold a slash."""
    return hashlib.sha256(name.encode()).hexdigest()[:32] + ".npz"
