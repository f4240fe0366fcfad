"""Weights that become 0: SparseGPT (Frantar and Alistarh 2023) and Wanda (Sun et al. 2023)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from headrace.compress.gptq import Moments, inverse_factor
from headrace.compress.pruning.cut_checkpoint import Cut, uncut
from headrace.compress.pruning.importance import check_windows, decoder_of
from headrace.compress.walk import walk
from headrace.errors import NumericalError, UsageError
from headrace.loading.program_weights import ProgramWeights
from headrace.ops.value import Array, Ints
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quant_types.block_type import Floats
from headrace.weights.tensor_output import finite
from headrace.weights.tensor_roles import class_of

METHODS = ("sparsegpt", "wanda")
BLOCK = 128
"""Columns whose mask SparseGPT chooses together."""
_PRUNED = ("attention", "mlp", "experts")
_MAX_GROUP = 64


class SparsityOrder(Struct, frozen=True, kw_only=True):
    """Windows [N, L] of tokens, the share of weights that becomes 0, and the pattern: (2, 4) keeps 2 of each
    4 inputs of a row, None any."""

    windows: Ints
    share: float
    pattern: tuple[int, int] | None
    method: str


class SparsityReport(Struct, frozen=True):
    """The share of zeros in the pruned matrices; the squared error of each matrix' products on the text, as a
    share of their own squares; `plain` matrices have no inputs of their own, such as those of experts, and
    lost their smallest weights."""

    reached: float
    loss: float
    worst: str
    matrices: int
    plain: int


def read_pattern(text: str | None, share: float) -> tuple[int, int] | None:
    """`2:4` as (2, 4): 2 of each 4 are kept. UsageError where it is none, or not what `share` says."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,2}):(\d{1,2})", text)
    kept, group = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 < kept < group <= _MAX_GROUP:
        raise UsageError(f"--pattern is {text[:20]!r}: give kept:group, such as 2:4", param="pattern")
    if abs(1 - kept / group - share) > 1e-9:
        raise UsageError(
            f"--pattern {text} makes {1 - kept / group:g} of the weights 0, --sparsity is {share:g}",
            param="pattern",
        )
    return kept, group


def sparsify(
    source: CheckpointReader, order: SparsityOrder, work: Path, progress: Callable[[int, int], None]
) -> tuple[Cut, SparsityReport]:
    """A checkpoint in which a share of the weights of layers is 0. Matrices are kept in the folder `work`
    until they are written. CorruptFile for weights that are no numbers, NumericalError for such inputs."""
    check_windows(order.windows)
    program = verify(record(decoder_of(source).define))
    weights = ProgramWeights(source, program)
    wanted = {name for name, info in source.tensors.items() if _is_pruned(name, info.shape, order)}
    changed = program.parts.keys() | program.stacks.keys() | program.derived.keys()
    linears = {
        weight.name
        for one in program.expanded()
        if one.name == "linear" and (weight := one.inputs[1]) is not None
    }
    targets = frozenset((wanted & linears) - changed)
    files, losses, zeros = dict[str, Path](), dict[str, float](), [0, 0]

    def keep(name: str, values: Floats) -> None:
        files[name] = Path(tempfile.mkstemp(suffix=".npy", dir=work)[1])
        np.save(files[name], values)
        zeros[0] += int((values == 0).sum())
        zeros[1] += values.size
        progress(len(files), len(wanted))

    def prune(name: str, moments: Moments) -> Array:
        matrix = weights.float32(name)
        values = prune_matrix(matrix, moments, order, name=name)
        losses[name] = _loss(matrix, values, moments)
        keep(name, values)
        return values

    if targets:
        walk(program, weights, order.windows, targets, prune)
    for name in sorted(wanted - targets):
        keep(name, _smallest(finite(source.float32(name), name), np.ones(source.info(name).shape[-1]), order))
    if not files:
        raise UsageError("no matrix of this model has rows that the pattern divides", param="pattern")
    cut = uncut(source)
    values = {name: _reader(file) for name, file in files.items()}
    worst = max(losses, key=lambda name: losses[name], default="")
    mean = float(np.mean(list(losses.values()))) if losses else 0.0
    report = SparsityReport(zeros[0] / zeros[1], mean, worst, len(files), len(wanted - targets))
    return Cut(cut.config, cut.names, {}, values), report


def prune_matrix(weight: Floats, moments: Moments, order: SparsityOrder, *, name: str) -> Floats:
    """A matrix [n, k] with zeros, for inputs whose second moments are [k, k] (X^T X)."""
    finite(weight, name)
    if not np.isfinite(moments).all():
        raise NumericalError(f"the inputs of {name} overflow on the calibration text: take another text")
    if order.method == "wanda":
        return _smallest(weight, np.sqrt(np.diag(moments)), order)
    return _sparsegpt(weight, moments, order)


def _smallest(weight: Floats, norms: Floats | Moments, order: SparsityOrder) -> Floats:
    """The weights whose products with inputs of such norms are smallest become 0, in each row."""
    scores = np.abs(weight) * np.maximum(norms, 1e-12)
    rows = scores.reshape(-1, weight.shape[-1])
    out = weight.reshape(rows.shape).copy()
    out[_lowest(rows, order)] = 0
    return out.reshape(weight.shape)


def _lowest(scores: Floats | Moments, order: SparsityOrder) -> np.ndarray:
    """True for the lowest scores: of each group of columns, or a share of each row."""
    n, k = scores.shape
    kept, group = order.pattern or (k - round(k * order.share), k)
    grouped = scores.reshape(n, k // group, group)
    places = np.argsort(grouped, axis=2, kind="stable")[:, :, : group - kept]
    lowest = np.zeros(grouped.shape, np.bool_)
    np.put_along_axis(lowest, places, True, axis=2)
    return lowest.reshape(n, k)


def _sparsegpt(weight: Floats, moments: Moments, order: SparsityOrder) -> Floats:
    factor = inverse_factor(moments)
    rest = weight.astype(np.float32).copy()
    out = np.empty_like(rest)
    block = BLOCK if order.pattern is None else BLOCK // order.pattern[1] * order.pattern[1]
    for start in range(0, rest.shape[1], block):
        end = min(start + block, rest.shape[1])
        inner = factor[start:end, start:end]
        diagonal = np.diag(inner)
        columns, errors = rest[:, start:end].copy(), np.empty((len(rest), end - start), np.float32)
        mask = _block_mask(np.square(columns / diagonal), order.share) if order.pattern is None else None
        for j in range(end - start):
            if order.pattern is not None and j % order.pattern[1] == 0:
                group = slice(j, j + order.pattern[1])
                mask = np.zeros(columns.shape, np.bool_) if mask is None else mask
                mask[:, group] = _lowest(np.square(columns[:, group] / diagonal[group]), order)
            assert mask is not None
            values = np.where(mask[:, j], np.float32(0), columns[:, j])
            out[:, start + j] = values
            errors[:, j] = (columns[:, j] - values) / inner[j, j]
            columns[:, j + 1 :] -= np.outer(errors[:, j], inner[j, j + 1 :])
        rest[:, end:] -= errors @ factor[start:end, end:]
    return out


def _block_mask(scores: Floats, share: float) -> np.ndarray:
    """True for the lowest share of all scores of a block."""
    count = round(scores.size * share)
    order = np.argsort(scores, axis=None, kind="stable")[:count]
    mask = np.zeros(scores.size, np.bool_)
    mask[order] = True
    return mask.reshape(scores.shape)


def _is_pruned(name: str, shape: tuple[int, ...], order: SparsityOrder) -> bool:
    if len(shape) not in (2, 3) or class_of(name, len(shape)) not in _PRUNED or not name.endswith("weight"):
        return False
    return order.pattern is None or shape[-1] % order.pattern[1] == 0


def _loss(weight: Floats, values: Floats, moments: Moments) -> float:
    difference = (weight - values).astype(np.float64)
    whole = float(((weight.astype(np.float64) @ moments) * weight).sum())
    return float(((difference @ moments) * difference).sum()) / whole if whole else 0.0


def _reader(file: Path) -> Callable[[], Floats]:
    return lambda: np.load(file, allow_pickle=False)
