"""What an engine of a planned model is made of: weights, executor, speculation."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace import _native
from headrace.engine.speculative.controller import SpeculationController
from headrace.engine.speculative.draft_model import DraftModel
from headrace.executors.executor import Executor
from headrace.executors.native import NativeExecutor
from headrace.executors.rank_group import RankGroup
from headrace.executors.reference import ReferenceExecutor
from headrace.executors.torch_executor import TorchExecutor
from headrace.loading.memory_plan import capacity_of
from headrace.loading.native_weights import PackedWeights, Progress, native_weights
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import PlannedModel
from headrace.loading.program_weights import ProgramWeights
from headrace.sampling.sampler import Sampler
from headrace.weights.packing.packed_cache import CacheTroubles
from headrace.weights.tensor_output import finite


def own_part(prepared: PlannedModel) -> PlannedModel:
    """What this process runs of a model: all of it, or of the first stage the first rank's share."""
    if not prepared.stages:
        return prepared
    first = prepared.stages[0]
    return replace(
        prepared, program=first.program, wanted=first.wanted, kv=first.kv, rank=first.rank, stages=()
    )


def load_weights(
    prepared: PlannedModel,
    options: EngineOptions,
    pool: _native.Pool,
    progress: Progress | None = None,
    troubles: CacheTroubles | None = None,
) -> PackedWeights:
    """The weights as the executor needs them; `troubles` counts what went wrong with their cache."""
    program, rank = prepared.program, prepared.rank
    checkpoint = (
        ProgramWeights(prepared.checkpoint, program) if rank is None else rank.weights(prepared.checkpoint)
    )
    if options.backend != "native":
        return PackedWeights({}, {name: finite(checkpoint.float32(name), name) for name in program.weights})
    return native_weights(checkpoint, program, prepared.wanted, options, pool, progress, troubles)


def make_executor(
    prepared: PlannedModel,
    options: EngineOptions,
    pool: _native.Pool,
    weights: PackedWeights,
    *,
    group: RankGroup | None = None,
) -> Executor:
    """The executor of a program with its weights, of the ranks of `group` the first one."""
    program, capacity = prepared.program, capacity_of(prepared.plan, options)
    if options.backend == "numpy":
        return ReferenceExecutor(program, weights.floats, capacity)
    if options.backend == "torch":
        return TorchExecutor(program, weights.floats, capacity)
    kv_type = prepared.plan.kv_type
    return NativeExecutor(
        program,
        weights.matrices,
        weights.floats,
        capacity,
        pool=pool,
        kv_type=kv_type,
        kv=prepared.kv,
        group=group,
    )


def make_speculation(
    prepared: PlannedModel,
    options: EngineOptions,
    pool: _native.Pool,
    weights: PackedWeights,
    load: Callable[[PlannedModel], PackedWeights],
) -> SpeculationController | None:
    """The model's speculation; None where it is off, or the model has a recurrent state, which cannot be
    rolled back. `weights` are the model's own, `load` returns those of a draft model."""
    if options.speculative == "off" or prepared.plan.state_bytes or prepared.model.pooling is not None:
        return None
    model = None
    draft = prepared.draft
    if draft is not None:
        own = draft.checkpoint is prepared.checkpoint
        executor = make_executor(draft, options, pool, weights if own else load(draft))
        assert isinstance(executor, NativeExecutor)
        sampler = Sampler(draft.model.config.vocabulary, pool)
        model = DraftModel(
            executor, sampler, context=draft.plan.context, vocabulary=prepared.model.config.vocabulary
        )
    rows = capacity_of(prepared.plan, options).max_rows
    return SpeculationController(max_rows=rows, model=model)
