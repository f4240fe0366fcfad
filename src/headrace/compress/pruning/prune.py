"""A checkpoint that becomes smaller in several ways, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import prod
from pathlib import Path

from msgspec import Struct

from headrace.compress.pruning.cut_checkpoint import Cut, CutCheckpoint
from headrace.compress.pruning.depth import drop_layers, layers_to_drop
from headrace.compress.pruning.importance import Importance, decoder_of, importance
from headrace.compress.pruning.sparsity import METHODS, SparsityOrder, SparsityReport, read_pattern, sparsify
from headrace.compress.pruning.width import WidthReport, cut_experts, cut_ffn, cut_heads, unreached
from headrace.errors import UsageError
from headrace.ops.value import Ints
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.quantized.sparse import BITMASK_24
from headrace.weights.quantized.sparse import FORMATS as SPARSE_FORMATS

Progress = Callable[[int, int], None]
SAME_SPEED = (
    "zeros are stored and multiplied as any other weight: the speed, the memory and the size of the files do"
    " not change"
)
SMALLER_FILES = (
    "zeros are multiplied as any other weight: the files are smaller, the speed and the memory do not change"
)
DENSE = "dense"
STORAGE = (DENSE, *SPARSE_FORMATS)


class PruneOrder(Struct, frozen=True, kw_only=True):
    """What is to go, None where nothing of that kind does; see `headrace prune`."""

    windows: Ints
    drop_layers: str | None = None
    ffn: float | None = None
    heads: int | None = None
    experts: int | None = None
    sparsity: float | None = None
    pattern: str | None = None
    method: str = "sparsegpt"
    format: str = DENSE

    def check(self) -> None:
        """UsageError where nothing is to go, or a number is out of its range."""
        if all(one is None for one in (self.drop_layers, self.ffn, self.heads, self.experts, self.sparsity)):
            raise UsageError(
                "nothing is to be pruned: give --drop-layers, --ffn, --heads, --experts or --sparsity"
            )
        for name, share in (("ffn", self.ffn), ("sparsity", self.sparsity)):
            if share is not None and not 0 < share < 1:
                raise UsageError(f"--{name} is {share}: give a share between 0 and 1", param=name)
        for name, count in (("heads", self.heads), ("experts", self.experts)):
            if count is not None and count < 1:
                raise UsageError(f"--{name} is {count}: at least one must stay", param=name)
        if self.sparsity is None and self.pattern is not None:
            raise UsageError("--pattern is one of zeros: give --sparsity too", param="pattern")
        if self.method not in METHODS:
            raise UsageError(f"--method is {self.method[:40]}: use {' or '.join(METHODS)}", param="method")
        if self.sparsity is not None:
            read_pattern(self.pattern, self.sparsity)
        self._check_format()

    def _check_format(self) -> None:
        if self.format not in STORAGE:
            raise UsageError(f"--format is {self.format[:40]}: use {', '.join(STORAGE)}", param="format")
        if self.format != DENSE and self.sparsity is None:
            raise UsageError(f"--format {self.format} stores zeros: give --sparsity too", param="format")
        if self.format == BITMASK_24 and self.pattern != "2:4":
            raise UsageError(
                f"--format {BITMASK_24} stores two of each four: give --pattern 2:4", param="format"
            )


class LayersReport(Struct, frozen=True):
    """Layers that were left out, and the influence of each that there was."""

    before: int
    after: int
    dropped: list[int]
    influence: list[float]


class StorageReport(Struct, frozen=True):
    """How zeros are stored, the bytes of all tensors, and what they would be with every zero stored."""

    format: str
    bytes: int
    bytes_dense: int


class PruneReport(Struct, kw_only=True):
    """What was left out. `speed` says what that means for speed."""

    parameters: int = 0
    parameters_before: int = 0
    layers: LayersReport | None = None
    ffn: WidthReport | None = None
    heads: WidthReport | None = None
    experts: WidthReport | None = None
    experts_unreached: int = 0
    sparsity: SparsityReport | None = None
    storage: StorageReport | None = None
    speed: str = ""


@contextmanager
def pruned(
    source: CheckpointReader, order: PruneOrder, work: Path, progress: Progress
) -> Generator[tuple[CheckpointReader, PruneReport]]:
    """The checkpoint as it will be, and the report. Layers go first, then parts of those that are left, each
    by what the model does on the text at that point."""
    order.check()
    report = PruneReport(parameters_before=_parameters(source))
    layers = decoder_of(source).config.layers
    reader: CheckpointReader = source

    def found() -> Importance:
        return importance(reader, order.windows, progress)

    if order.drop_layers is not None:
        seen = found()
        cut, dropped = drop_layers(reader, seen, layers_to_drop(order.drop_layers, layers))
        report.layers = LayersReport(layers, layers - len(dropped), dropped, seen.influence)
        reader = CutCheckpoint(reader, cut)
    if order.experts is not None:
        seen = found()
        cut, report.experts = cut_experts(reader, seen, order.experts)
        report.experts_unreached = unreached(seen)
        reader = CutCheckpoint(reader, cut)
    if order.heads is not None:
        cut, report.heads = cut_heads(reader, found(), order.heads)
        reader = CutCheckpoint(reader, cut)
    if order.ffn is not None:
        cut, report.ffn = cut_ffn(reader, found(), order.ffn)
        reader = CutCheckpoint(reader, cut)
    if order.sparsity is not None:
        cut, report.sparsity = _sparse(reader, order, order.sparsity, work, progress)
        reader = CutCheckpoint(reader, cut)
    report.parameters = _parameters(reader)
    share = 1 - report.parameters / report.parameters_before
    only_zeros = report.parameters == report.parameters_before
    of_zeros = SAME_SPEED if order.format == DENSE else SMALLER_FILES
    report.speed = of_zeros if only_zeros else f"{share:.1%} fewer weights are read for each token"
    if order.sparsity is not None and not only_zeros:
        report.speed += f"; {of_zeros}"
    yield reader, report


def _sparse(
    reader: CheckpointReader, order: PruneOrder, share: float, work: Path, progress: Progress
) -> tuple[Cut, SparsityReport]:
    wanted = SparsityOrder(
        windows=order.windows,
        share=share,
        pattern=read_pattern(order.pattern, share),
        method=order.method,
    )
    return sparsify(reader, wanted, work, progress)


def _parameters(checkpoint: CheckpointReader) -> int:
    return sum(prod(info.shape) for info in checkpoint.tensors.values())


def float_type(source: CheckpointReader) -> str:
    """The float type to write: that of the largest tensor; of rounded ones bf16."""
    largest = max(source.tensors.values(), key=lambda info: prod(info.shape))
    return {"F32": "f32", "F16": "f16"}.get(largest.dtype, "bf16")
