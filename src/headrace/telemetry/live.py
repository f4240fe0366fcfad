"""Figures of a running server for who watches it: totals, of which readers make differences."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.telemetry.model_report import ModelReport


class PageCounts(Struct, frozen=True):
    """Pages of the KV cache: of running sequences, kept for prompts to come, and free."""

    used: int
    cached: int
    free: int


class ModelMemory(Struct, frozen=True):
    """Bytes of a model's processes, all zero while it is not loaded."""

    weights: int = 0
    kv_cache: int = 0
    other: int = 0


class WeightUse(Struct, frozen=True):
    """Bytes of weights that a step reads at least, and operations of a token; of a model that is loaded."""

    bytes: int = 0
    operations: float = 0.0


class ModelSizes(Struct, frozen=True):
    """What a model has, all its replicas together. `replicas` is None where it is not served by replicas."""

    memory: ModelMemory = ModelMemory()
    work: WeightUse = WeightUse()
    max_running: int = 0
    replicas: int | None = None


class LiveModel(Struct, frozen=True, kw_only=True):
    """One model. What is not a gauge (`replicas` to `max_running`, `pages`, `memory`) is counted since the
    server's start. `replicas` is how many run, None for a model without replicas. `first_token`, `per_token`
    and `between_tokens` are counts of latencies in the buckets of `LiveFigures.bounds_s`, and one more for
    what is above."""

    name: str
    state: str
    replicas: int | None
    running: int
    waiting: int
    max_running: int
    steps: int
    prompt_tokens: int
    generation_tokens: int
    cache_queries: int
    cache_hits: int
    drafted: int
    accepted: int
    preemptions: int
    restarts: int
    pages: PageCounts
    memory: ModelMemory
    step_bytes: int
    step_operations: float
    first_token: list[int]
    per_token: list[int]
    between_tokens: list[int]


class MachinePeaks(Struct, frozen=True):
    """What this machine can do at best, as it was measured once. `cache_bytes` of the processor: weights that
    fit into it are not read from memory."""

    cpu: str
    read_bytes_per_s: float
    operations_per_s: float
    cache_bytes: int


class LiveFigures(Struct, frozen=True, kw_only=True):
    """All figures at one time. `started_s` tells one process from the next; times are Unix seconds."""

    started_s: float
    now_s: float
    bounds_s: tuple[float, ...]
    memory_bytes: int
    replies: Mapping[int, int]
    models: list[LiveModel]
    machine: MachinePeaks | None = None


def live_model(report: ModelReport, sizes: ModelSizes) -> LiveModel:
    """The figures of one model, from what its metrics are made of."""
    meter, status = report.meter, report.status
    return LiveModel(
        name=report.name,
        state=report.state,
        replicas=sizes.replicas,
        running=status.running,
        waiting=status.waiting,
        max_running=sizes.max_running,
        steps=status.steps,
        prompt_tokens=meter.prompt_tokens,
        generation_tokens=meter.generation_tokens,
        cache_queries=meter.cache_queries,
        cache_hits=meter.cache_hits,
        drafted=status.drafted,
        accepted=status.accepted,
        preemptions=status.preemptions,
        restarts=report.restarts,
        pages=PageCounts(
            used=status.page_count - status.available_pages,
            cached=status.available_pages - status.free_pages,
            free=status.free_pages,
        ),
        memory=sizes.memory,
        step_bytes=sizes.work.bytes,
        step_operations=sizes.work.operations,
        first_token=meter.first_token.counts(),
        per_token=meter.per_token.counts(),
        between_tokens=meter.between_tokens.counts(),
    )
