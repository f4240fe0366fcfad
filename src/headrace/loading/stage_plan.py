"""A model in several processes: which of its layers, and of their outputs, each has, and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.engine.client import MemoryPlan
from headrace.errors import OutOfMemory, UnsupportedModel
from headrace.executors.kv_layers import KvLayers
from headrace.executors.native import kv_bytes_per_page, scratch_bytes, state_bytes
from headrace.executors.rank_group import RankGroup
from headrace.kv.pages import pages_for
from headrace.loading.free_memory import free_memory_bytes
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.loading.rank_weights import RankWeights
from headrace.ops.value import Value
from headrace.program.fuse import fuse
from headrace.program.plan import plan_arena, plan_shared_arena
from headrace.program.program import Program
from headrace.program.shares import RowRange, share_of
from headrace.program.stages import split, stage_cuts
from headrace.weights.checkpoint_reader import CheckpointReader
from headrace.weights.packing.packed_weights import WeightSpec, predicted_bytes


class RankOf(Struct, frozen=True, eq=False):
    """Which rank of a stage a process is, and the rows that it has of each split weight of `whole`."""

    rank: int
    ranks: int
    rows: Mapping[str, RowRange]
    whole: Program

    def weights(self, checkpoint: CheckpointReader) -> RankWeights:
        """What it reads of a checkpoint."""
        return RankWeights(ProgramWeights(checkpoint, self.whole), self.rows, self.rank, self.ranks)

    def group(self, memory: NDArray[np.uint8]) -> RankGroup:
        """With the others, in the memory that they share."""
        return RankGroup(self.rank, self.ranks, memory, self.rows)


class ModelStage(Struct, frozen=True, eq=False):
    """What one process has of a model; `rank` where several processes have a stage."""

    program: Program
    wanted: tuple[WeightSpec, ...]
    kv: KvLayers | None
    rank: RankOf | None = None


def stages_of(
    program: Program, wanted: Sequence[WeightSpec], kv: KvLayers | None, cuts: Sequence[int], ranks: int = 1
) -> tuple[ModelStage, ...]:
    """The stages of a program that is cut there once it is fused, each as its ranks one after the other."""
    stages: list[ModelStage] = []
    for part in split(fuse(program), cuts):
        own = tuple(one for one in wanted if one.name in part.weights)
        stage = ModelStage(part, own, _kv_of(part, program, kv))
        if ranks == 1:
            stages.append(stage)
        else:
            stages += [_rank_of(stage, program, rank, ranks) for rank in range(ranks)]
    return tuple(stages)


def _rank_of(stage: ModelStage, program: Program, rank: int, ranks: int) -> ModelStage:
    share = share_of(stage.program, rank, ranks)
    wanted = tuple(
        replace(one, n=share.rows[one.name].count) if one.name in share.rows else one for one in stage.wanted
    )
    kv = stage.kv
    if kv is not None and kv.balance:
        widths = [int(cache.shape[1]) for cache in share.program.caches]
        rows = zip(kv.balance, share.keys, widths, strict=True)
        kv = KvLayers(kv.bits, tuple(row[first : first + width] for row, first, width in rows))
    return ModelStage(share.program, wanted, kv, RankOf(rank, ranks, share.rows, program))


def cuts_of(
    program: Program, wanted: Sequence[WeightSpec], kv: KvLayers | None, plan: MemoryPlan, count: int
) -> tuple[int, ...]:
    """The cuts that make the largest stage smallest."""
    if count == 1:
        return ()
    sizes = {one.name: predicted_bytes([one]) for one in wanted}
    per_page = {
        cache: kv_bytes_per_page(
            replace(program, caches=(cache,)), plan.kv_type, plan.page_tokens, _kv_at(kv, index)
        )
        for index, cache in enumerate(program.caches)
    }

    def bytes_of(value: Value) -> int:
        if value.kind == "weight":
            return sizes.get(value.name, 4 * prod(int(size) for size in value.shape))
        if value in per_page:
            return per_page[value] * plan.page_count
        return plan.state_bytes * int(value.shape[1]) // max(program.state_width, 1)

    return stage_cuts(fuse(program), count, bytes_of)


def staged_plan(stages: Sequence[ModelStage], plan: MemoryPlan, options: EngineOptions) -> MemoryPlan:
    """The plan of all processes together, with as many pages as the fullest has room for. OutOfMemory."""
    fixed = [_fixed_bytes(stage, plan, options) for stage in stages]
    fixed[0] += plan.draft_bytes
    per_page = [kv_bytes_per_page(one.program, plan.kv_type, plan.page_tokens, one.kv) for one in stages]
    pages, count = plan.page_count, len(stages)
    if options.memory_bytes is not None:
        room = [options.memory_bytes - plan.base_bytes - own for own in fixed]
        pages = min(
            pages, *(left // size if size else pages for left, size in zip(room, per_page, strict=True))
        )
        least = plan.page_count if options.kv_cache_memory else pages_for(plan.context, plan.page_tokens)
        if min(room) < 0 or (any(per_page) and pages < min(least, plan.page_count)):
            needed = [own + plan.base_bytes + least * size for own, size in zip(fixed, per_page, strict=True)]
            raise _does_not_fit(max(needed), needed.index(max(needed)), count, options.memory_bytes)
    sizes = tuple(plan.base_bytes + own + pages * size for own, size in zip(fixed, per_page, strict=True))
    if sum(sizes) - plan.base_bytes > free_memory_bytes():
        raise _does_not_fit(sum(sizes), None, count, free_memory_bytes())
    return replace(
        plan,
        weights_bytes=sum(_weight_bytes(stage) for stage in stages),
        activation_bytes=sum(_activation_bytes(stage, plan) for stage in stages),
        kv_bytes=pages * sum(per_page),
        base_bytes=plan.base_bytes * count,
        page_count=pages,
        process_bytes=sizes,
    )


def _does_not_fit(needed: int, stage: int | None, count: int, limit: int) -> OutOfMemory:
    who = f"its {count} processes need" if stage is None else f"process {stage + 1} of {count} needs"
    return OutOfMemory(
        f"the model does not fit: {who} {needed / 1e9:.2f} GB of {max(limit, 0) / 1e9:.2f} GB: use more --pp"
        " or --tp,"
        " a smaller --max-model-len or --max-num-seqs, or --quantization int4",
        needed_bytes=needed,
    )


def check_stages(options: EngineOptions, *, encodes: bool) -> None:
    """UnsupportedModel where a model cannot be in several processes."""
    if encodes:
        name = "pp" if options.pp > 1 else "tensor_parallel_size"
        raise UnsupportedModel(f"{name}: an encoder runs in one process: leave {name} out", param=name)


def _kv_of(part: Program, program: Program, kv: KvLayers | None) -> KvLayers | None:
    if kv is None:
        return None
    indices = [program.caches.index(cache) for cache in part.caches]
    return KvLayers(
        tuple(kv.bits[index] for index in indices) if kv.bits else (),
        tuple(kv.balance[index] for index in indices) if kv.balance else (),
    )


def _kv_at(kv: KvLayers | None, index: int) -> KvLayers | None:
    return None if kv is None else KvLayers(kv.bits[index : index + 1], kv.balance[index : index + 1])


def _weight_bytes(stage: ModelStage) -> int:
    vectors = (value.shape for value in stage.program.weights.values() if len(value.shape) != 2)
    return predicted_bytes(stage.wanted) + 4 * sum(prod(int(size) for size in shape) for shape in vectors)


def _activation_bytes(stage: ModelStage, plan: MemoryPlan) -> int:
    arena = plan_arena(stage.program, max_tokens=plan.step_tokens, max_rows=plan.step_rows)
    shared = plan_shared_arena(stage.program, max_tokens=plan.step_tokens, max_rows=plan.step_rows)
    formats = {weight.format for weight in stage.wanted}
    return (
        arena.nbytes
        + shared.nbytes
        + (scratch_bytes(stage.program, formats, plan.step_tokens) if formats else 0)
    )


def _fixed_bytes(stage: ModelStage, plan: MemoryPlan, options: EngineOptions) -> int:
    states = state_bytes(stage.program, options.max_num_seqs) if plan.state_bytes else 0
    return _weight_bytes(stage) + _activation_bytes(stage, plan) + states
