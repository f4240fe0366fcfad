"""What the parts of a model do on a calibration text: how much layers change, which channels are large."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from headrace.compress.walk import observe
from headrace.errors import NumericalError, UnsupportedModel, UsageError
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.tied_output import config_with_ties
from headrace.models.decoder_config import DecoderConfig
from headrace.models.registry import Model, find_model
from headrace.ops.value import Array, Ints, Value
from headrace.program.program import Instruction, Program
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint_reader import CheckpointReader

Scores = NDArray[np.float64]
LAYER = re.compile(r"^((?:.*\.)?(?:layers|h)\.)(\d+)(\..*)$")
"""Prefix, number and rest of the name of a layer's tensor."""


class Importance(Struct, frozen=True):
    """By layer. `influence`: 1 - the mean cosine of the residual stream before and after it (ShortGPT, Men et
    al. 2024). `inputs`: the norm over all tokens of each input of its matrices, by the matrix' name.
    `gates`: what each expert's gate adds up to; `reached`: experts that some token chose."""

    influence: list[float] = field(default_factory=list[float])
    inputs: dict[str, Scores] = field(default_factory=dict[str, Scores])
    gates: dict[int, Scores] = field(default_factory=dict[int, Scores])


def decoder_of(checkpoint: CheckpointReader) -> Model:
    """The model, which must generate; UnsupportedModel for encoders."""
    model = find_model(config_with_ties(checkpoint))
    if model.pooling is not None:
        raise UnsupportedModel(f"{model.model_type} is an encoder: only models that generate are pruned")
    return model


def transformer_of(checkpoint: CheckpointReader, what: str) -> DecoderConfig:
    """Its config; UnsupportedModel where it has none of the parts that are to be cut."""
    model = decoder_of(checkpoint)
    if not isinstance(model.config, DecoderConfig):
        raise UnsupportedModel(f"{model.model_type} has no attention or MLP: {what} does not apply to it")
    return model.config


def check_windows(windows: Ints) -> None:
    """UsageError where there are too few tokens."""
    if windows.size < 2:
        raise UsageError(
            f"the calibration text has {windows.size} tokens, at least 2 are needed", param="calibrate"
        )


def importance(
    checkpoint: CheckpointReader, windows: Ints, progress: Callable[[int, int], None]
) -> Importance:
    """Read windows [N, L] of tokens. NumericalError where a layer gives no finite numbers."""
    check_windows(windows)
    model = decoder_of(checkpoint)
    program = verify(record(model.define))
    seen = _Observer(program, progress)
    observe(program, ProgramWeights(checkpoint, program), windows, seen.see)
    return Importance(
        seen.influence, {name: np.sqrt(total) for name, total in seen.squares.items()}, seen.gates
    )


class _Observer:
    def __init__(self, program: Program, progress: Callable[[int, int], None]) -> None:
        self.influence: list[float] = []
        self.squares: dict[str, Scores] = {}
        self.gates: dict[int, Scores] = {}
        self._layer = -1
        self._entry: list[Array] = []
        self._done, self._total = 0, len(program.expanded())
        self._progress = progress

    def see(self, instruction: Instruction, of: Callable[[Value], list[Array]]) -> None:
        self._done += 1
        self._progress(self._done, self._total)
        layer = next((found for value in instruction.inputs if (found := _layer_of(value)) is not None), None)
        is_last = instruction.name == "gather" and bool(self._entry)
        if (layer is not None and layer != self._layer) or is_last:
            self._enter(-1 if layer is None else layer, of(_rows_of(instruction)))
        weight = instruction.inputs[1] if instruction.name == "linear" else None
        if weight is not None:
            total = self.squares.get(weight.name, np.zeros(1))
            for rows in of(_rows_of(instruction)):
                total = total + np.square(rows, dtype=np.float64).sum(axis=0)
            if not np.isfinite(total).all():
                raise NumericalError(
                    f"the inputs of {weight.name} overflow on the calibration text: take another text"
                )
            self.squares[weight.name] = total
        if instruction.name == "route":
            gates = of(instruction.outputs[0])
            self.gates[self._layer] = cast("Scores", sum(one.sum(axis=0, dtype=np.float64) for one in gates))

    def _enter(self, layer: int, rows: list[Array]) -> None:
        if self._entry:
            before, after = np.concatenate(self._entry), np.concatenate(rows)
            norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
            cosine = float(((before * after).sum(axis=1) / np.maximum(norms, 1e-30)).mean())
            if not np.isfinite(cosine):
                raise NumericalError(
                    f"layer {self._layer} gives numbers that are not finite: its weights are damaged"
                )
            self.influence.append(1 - cosine)
        self._layer = layer
        self._entry = [one.copy() for one in rows] if layer >= 0 else []


def _layer_of(value: Value | None) -> int | None:
    if value is None or value.kind != "weight":
        return None
    found = LAYER.match(value.name)
    return None if found is None else int(found[2])


def _rows_of(instruction: Instruction) -> Value:
    rows = instruction.inputs[0]
    assert rows is not None
    return rows
