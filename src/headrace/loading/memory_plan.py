"""The memory plan, made before any weight is read: weights, keys and values, states, activations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import psutil

from headrace.engine.client import MemoryPlan
from headrace.errors import OutOfMemory, UsageError
from headrace.executors.cpu_cache import LEAST_CACHES, cache_bytes
from headrace.executors.executor import ExecutorLimits
from headrace.executors.kv_layers import KvLayers, KvType, layer_types
from headrace.executors.native import (
    is_coded,
    kv_bytes_per_page,
    scratch_bytes,
    state_bytes,
    uncoded_reason,
)
from headrace.kv.pages import PAGE_TOKENS, pages_for
from headrace.loading.free_memory import free_memory_bytes
from headrace.loading.options import EngineOptions
from headrace.loading.weight_specs import in_int4
from headrace.program.fuse import fuse
from headrace.program.plan import plan_arena
from headrace.program.program import Program
from headrace.weights.packing.packed_weights import WeightSpec, predicted_bytes

KV_SHARE_OF_FREE_MEMORY = 0.5
DRAFT_ROWS = 32


def plan_memory(
    program: Program,
    wanted: Sequence[WeightSpec],
    options: EngineOptions,
    *,
    context: int,
    encodes: bool = False,
    draft_bytes: int = 0,
    kv: KvLayers | None = None,
) -> MemoryPlan:
    """The memory of a model; OutOfMemory where that is more than there is.

    `context` is the model's own length; the options may lower it, but not raise it. `draft_bytes` are those
    of its draft model, `kv` what a calibration found for the model. An encoder reads a text in one step, so
    that its steps are that long, and needs keys and values of one step only.
    """
    context = _context(options.max_model_len, context)
    kv_type = _kv_type(program, options, wanted, kv, encodes=encodes)
    weights = predicted_bytes(wanted) + 4 * _vector_entries(program)
    step_tokens, step_rows = _step_size(options, context, encodes=encodes)
    activations = _activation_bytes(program, wanted, step_tokens, step_rows)
    states = state_bytes(program, options.max_num_seqs)
    per_page = kv_bytes_per_page(program, kv_type, PAGE_TOKENS, kv)
    base = psutil.Process().memory_info().rss
    usable = _usable_bytes(options, base)
    free = usable - draft_bytes - weights - activations - states
    pages_of = _encoder_pages if encodes else _pages
    read = _bytes_per_token(program, wanted)
    pages = pages_of(options, step_tokens if encodes else context, per_page, free)
    plan = MemoryPlan(
        context=context,
        kv_type=kv_type,
        weights_bytes=weights,
        kv_bytes=pages * per_page,
        state_bytes=states,
        activation_bytes=activations,
        base_bytes=base,
        page_count=pages,
        page_tokens=PAGE_TOKENS if per_page else context,
        weight_bytes_per_token=read,
        step_tokens=step_tokens,
        step_rows=step_rows,
        draft_bytes=draft_bytes,
        operations_per_token=_operations_per_token(program, wanted),
        weight_format=most_common_format(wanted),
        smaller_bytes_per_token=_bytes_per_token(program, in_int4(wanted)) if _is_int8(wanted) else 0,
        reads_memory=read >= LEAST_CACHES * cache_bytes(),
    )
    if plan.kv_bytes > free:
        raise _does_not_fit(plan, usable, options.processes)
    return plan


def _is_int8(wanted: Sequence[WeightSpec]) -> bool:
    return most_common_format(wanted) == "int8"


def _does_not_fit(plan: MemoryPlan, usable: int, processes: int) -> OutOfMemory:
    draft = f"{_gb(plan.draft_bytes)} for the draft model, " if plan.draft_bytes else ""
    return OutOfMemory(
        f"the model needs {draft}{_gb(plan.weights_bytes)} for weights, {_gb(plan.activation_bytes)} for"
        f" activations, {_gb(plan.state_bytes)} for states and {_gb(plan.kv_bytes)} for keys and values, "
        f"{_gb(max(usable, 0))} are free: use a smaller --max-model-len or --max-num-seqs,"
        " or --quantization int4"
        + (f", or more processes than {processes} (--pp, --tp)" if processes > 1 else ""),
        needed_bytes=plan.bytes_of_all // processes,
    )


def _usable_bytes(options: EngineOptions, base: int) -> int:
    """Memory that may be used in addition to the `base` bytes of the process."""
    free = free_memory_bytes()
    return (
        free if options.memory_bytes is None else min(free, (options.memory_bytes - base) * options.processes)
    )


def _activation_bytes(
    program: Program, wanted: Sequence[WeightSpec], step_tokens: int, step_rows: int
) -> int:
    arena = plan_arena(fuse(program), max_tokens=step_tokens, max_rows=step_rows)
    return arena.nbytes + scratch_bytes(program, {weight.format for weight in wanted}, step_tokens)


def _step_size(options: EngineOptions, context: int, *, encodes: bool) -> tuple[int, int]:
    """Most tokens of a step, and most rows of output."""
    if encodes:
        tokens = max(options.max_batch_tokens, context)
        return tokens, tokens
    return options.max_batch_tokens, _max_rows(options)


def capacity_of(plan: MemoryPlan, options: EngineOptions) -> ExecutorLimits:
    """The executor's sizes under a plan."""
    return ExecutorLimits(
        max_tokens=plan.step_tokens,
        max_rows=plan.step_rows,
        page_count=plan.page_count,
        page_tokens=plan.page_tokens,
        state_slots=options.max_num_seqs if plan.state_bytes else 0,
    )


def _max_rows(options: EngineOptions) -> int:
    """Rows of logits: one for each sequence, and enough for the drafts of a few."""
    if options.speculative == "off":
        return options.max_num_seqs
    return min(max(options.max_num_seqs, DRAFT_ROWS), options.max_batch_tokens)


def _context(asked: int | None, own: int) -> int:
    if asked is not None and asked > own:
        raise UsageError(
            f"--max-model-len {asked:,} is more than the model's own {own:,} tokens: lower it",
            param="max_model_len",
        )
    return asked or own


def _kv_type(
    program: Program,
    options: EngineOptions,
    wanted: Sequence[WeightSpec],
    kv: KvLayers | None,
    *,
    encodes: bool,
) -> KvType:
    """The type of keys and values; UsageError for codes that the model or the backend cannot have. An encoder
    keeps nothing from step to step, so that codes would save nothing: it has another type then."""
    asked = options.kv_cache_dtype
    if asked != "auto" and not is_coded(asked):
        return asked
    if asked != "auto" and not encodes:
        if asked == "mixed" and (kv is None or not kv.bits):
            raise UsageError(
                "kv_cache_dtype mixed needs bits for each layer, and this model has none: find them with"
                " `headrace quantize IN OUT --kv-bits 6`, or use k8v4",
                param="kv_cache_dtype",
            )
        _check_coded(program, asked, kv, options.backend)
        return asked
    return "f32" if all(weight.format == "f32" for weight in wanted) else "bf16"


def _check_coded(program: Program, asked: KvType, kv: KvLayers | None, backend: str) -> None:
    reason = uncoded_reason(program, layer_types(program, asked, kv))
    if reason is None and backend == "native":
        return
    has_4_bits = backend == "native" and uncoded_reason(program, layer_types(program, "int4", None)) is None
    raise UsageError(
        f"kv_cache_dtype {asked}: "
        + (f"the model {reason}" if reason else f"backend {backend} has only floats")
        + f"; use {'int4' if has_4_bits else 'auto, bf16 or f32'}",
        param="kv_cache_dtype",
    )


def _pages(options: EngineOptions, context: int, per_page: int, free: int) -> int:
    return _page_count(options, context, per_page, free) if per_page else _pages_of_nothing(options, context)


def _page_count(options: EngineOptions, context: int, per_page: int, free: int) -> int:
    """Pages for the asked bytes, or for every sequence's full context as far as half the free memory goes."""
    one_context = -(-context // PAGE_TOKENS)
    if options.kv_cache_memory is not None:
        pages = options.kv_cache_memory // per_page
        if pages < 1:
            raise UsageError(
                f"kv_cache_memory {options.kv_cache_memory:,} is less than one page of {per_page:,} bytes",
                param="kv_cache_memory",
            )
        return min(pages, one_context * options.max_num_seqs)
    affordable = int(free * KV_SHARE_OF_FREE_MEMORY) // per_page
    return max(one_context, min(one_context * options.max_num_seqs, affordable))


def _encoder_pages(options: EngineOptions, step_tokens: int, per_page: int, free: int) -> int:
    """Pages for an encoder, each of whose texts begins with one of its own."""
    pages = pages_for(step_tokens, PAGE_TOKENS) + options.max_num_seqs
    if options.kv_cache_memory is not None and options.kv_cache_memory < pages * per_page:
        raise UsageError(
            f"kv_cache_memory {options.kv_cache_memory:,} is less than {pages * per_page:,}, which a step of"
            f" {step_tokens:,} tokens needs: raise it, or use a smaller --max-model-len",
            param="kv_cache_memory",
        )
    return pages


def _pages_of_nothing(options: EngineOptions, context: int) -> int:
    """One page for each sequence, of a model that keeps no keys and values."""
    if options.kv_cache_memory is not None:
        raise UsageError(
            "kv_cache_memory has no effect on a model without keys and values: leave it out, and lower"
            " --max-num-seqs for less memory",
            param="kv_cache_memory",
        )
    if context * options.max_num_seqs >= 1 << 31:
        raise UsageError(
            f"{options.max_num_seqs:,} sequences of {context:,} tokens are more than {1 << 31:,} tokens:"
            " use a smaller --max-model-len",
            param="max_model_len",
        )
    return options.max_num_seqs


def _vector_entries(program: Program) -> int:
    shapes = [value.shape for value in program.weights.values() if len(value.shape) != 2]
    return sum(prod(int(size) for size in shape) for shape in shapes)


def shares_per_token(program: Program) -> dict[str, float]:
    """Of each matrix that takes part in products: the share that one token is multiplied with."""
    shares: dict[str, float] = {}
    for instruction in program.expanded():
        if instruction.name in ("linear", "head_linear", "moe"):
            share = 1.0
            if instruction.name == "moe":
                gates = instruction.inputs[1]
                assert gates is not None
                share = program.experts_per_row(instruction) / int(gates.shape[1])
            shares |= {value.name: share for value in instruction.inputs if value is not None}
    return shares


def _bytes_per_token(program: Program, wanted: Sequence[WeightSpec]) -> int:
    shares = shares_per_token(program)
    return sum(int(shares.get(weight.name, 0) * predicted_bytes([weight])) for weight in wanted)


def _operations_per_token(program: Program, wanted: Sequence[WeightSpec]) -> float:
    shares = shares_per_token(program)
    return sum(2.0 * weight.n * weight.k * shares.get(weight.name, 0) for weight in wanted)


def most_common_format(wanted: Sequence[WeightSpec]) -> str:
    """The format of most numbers of these weights; "" without any."""
    sizes: dict[str, int] = {}
    for weight in wanted:
        sizes[weight.format] = sizes.get(weight.format, 0) + weight.n * weight.k
    return max(sizes, key=sizes.__getitem__, default="")


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"
