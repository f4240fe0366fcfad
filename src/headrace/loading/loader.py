"""From a name to a running engine: plan, pack the weights, start."""

from __future__ import annotations

import os
import time

from headrace import _native
from headrace.engine.client import EngineClient, EngineLimits, LoadedModel
from headrace.engine.encoder import Encoder
from headrace.engine.engine import Engine
from headrace.engine.speculative.controller import SpeculationController
from headrace.engine.step_times import StepBound
from headrace.engine.turns import Turns
from headrace.executors.executor import Executor
from headrace.executors.machine_limits import known_limits
from headrace.executors.rank_cores import staying_on
from headrace.loading.adapters import adapter_fitter
from headrace.loading.engine_parts import (
    load_weights,
    make_executor,
    make_speculation,
    own_part,
)
from headrace.loading.native_weights import PackedWeights, Progress
from headrace.loading.options import EngineOptions, pace_of
from headrace.loading.planned_model import PlannedModel, prepare
from headrace.loading.quality_check import check_quality
from headrace.loading.roofline import peak_of
from headrace.loading.stage_processes import StageProcesses
from headrace.sampling.params import SamplingParams
from headrace.sampling.sampler import Sampler
from headrace.weights.config_json import Config, find
from headrace.weights.head import read_head
from headrace.weights.input_rules import read_input_rules
from headrace.weights.packing.packed_cache import CacheTroubles
from headrace.weights.pooling import Pooling
from headrace.weights.span_head import check_span_head


def load_model(name: str | None, options: EngineOptions, *, progress: Progress | None = None) -> LoadedModel:
    """Load a folder, a hub name or a shipped model (None: the default one) and start its engine."""
    return start(prepare(name, options), options, progress=progress)


def start(
    prepared: PlannedModel,
    options: EngineOptions,
    *,
    progress: Progress | None = None,
    turns: Turns | None = None,
) -> LoadedModel:
    """Pack the weights, or read them from the cache, and start the engine, which takes `turns` with others;
    closes the checkpoint."""
    with prepared:
        check_quality(prepared, options)
        check_span_head(prepared.folder, prepared.model.config.hidden)
        cores, threads = (), options.threads or usable_cores()
        stages = None
        if prepared.stages:
            threads = max(1, threads // options.tensor_parallel_size)
            stages = StageProcesses(prepared, options, threads=threads)
            cores = stages.cores
        with staying_on(cores):
            pool = _native.Pool(threads)
        if turns is not None:
            turns.attach(pool)
        troubles = CacheTroubles()

        def load(of: PlannedModel) -> PackedWeights:
            return load_weights(of, options, pool, progress, troubles)

        try:
            own = own_part(prepared)
            weights = load(own)
            group = None if stages is None else stages.group(own.rank)
            executor = make_executor(own, options, pool, weights, group=group)
            speculation = make_speculation(prepared, options, pool, weights, load)
            if stages is not None:
                executor = stages.executor(executor, pool)
                ready = executor.wait()
                troubles.failures += ready.failures
                troubles.damages += ready.damages
        except BaseException:
            if stages is not None:
                stages.close()
            raise
        defaults = default_params(prepared.checkpoint.generation_config)
    return LoadedModel(
        name=prepared.name,
        folder=prepared.fitted or prepared.folder,
        context_length=prepared.plan.context,
        tokenizer=prepared.tokenizer,
        template=prepared.template,
        engine=_engine(prepared, options, executor, pool, speculation, turns),
        defaults=defaults,
        plan=prepared.plan,
        created_s=int(time.time()),
        cache_failures=troubles.failures,
        cache_damages=troubles.damages,
        head=prepared.model.head if prepared.fitted is None else read_head(prepared.fitted),
        input_rules=read_input_rules(prepared.folder),
    )


def _engine(
    prepared: PlannedModel,
    options: EngineOptions,
    executor: Executor,
    pool: _native.Pool,
    speculation: SpeculationController | None,
    turns: Turns | None,
) -> EngineClient:
    config, pooling = prepared.model.config, prepared.model.pooling
    limits = EngineLimits(
        context_length=prepared.plan.context,
        max_num_seqs=options.max_num_seqs,
        embedding_size=0 if pooling is None else int(prepared.program.output.shape[1]),
        model_context_length=config.context,
        may_speculate=options.speculative == "off" and not prepared.plan.state_bytes and pooling is None,
        vector_of_each_token=pooling == "none",
        pace=pace_of(options),
        bound=_bound(prepared, options),
    )
    if pooling is not None:
        return Encoder(
            executor, limits, Pooling(pooling, prepared.normalize), vocabulary=config.vocabulary, turns=turns
        )
    sampler = Sampler(config.vocabulary, pool)
    return Engine(
        executor,
        sampler,
        prepared.tokenizer,
        limits,
        speculation=speculation,
        turns=turns,
        read_adapter=adapter_fitter(prepared),
    )


def _bound(prepared: PlannedModel, options: EngineOptions) -> StepBound:
    """What the machine's limits say of a step, where they were measured before."""
    plan, cache = prepared.plan, options.cache_dir
    limits = None if cache is None else known_limits(options.threads or usable_cores(), cache)
    if limits is None:
        return StepBound()
    read_s = plan.weight_bytes_per_token / limits.read_bytes_per_s if plan.reads_memory else 0.0
    return StepBound(read_s, plan.operations_per_token / peak_of(plan.weight_format, limits))


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_params(generation: Config | None) -> SamplingParams:
    """Sampling defaults of generation_config.json; greedy where it says `do_sample: false`."""
    if not generation:
        return SamplingParams()
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: find(generation, name) for name in names}
    values: dict[str, float] = {k: v for k, v in given.items() if isinstance(v, int | float)}
    if find(generation, "do_sample") is False:
        values["temperature"] = 0.0
    return SamplingParams(**values)  # type: ignore[arg-type]
