"""The native executor: C++ runs the lowered program, one call per step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.errors import ProgramError
from headrace.executors.adapters import Adapter, packed_a, packed_b
from headrace.executors.executor import NO_DRAFTS, DraftPlan, ExecutorLimits
from headrace.executors.kv_layers import KV_BITS, KvLayers, KvType, LayerType, layer_types
from headrace.executors.lowering import Lowering
from headrace.executors.page_memory import PageMemory
from headrace.executors.rank_group import RankGroup
from headrace.ops.value import Array, Ints, Value
from headrace.program.fuse import fuse
from headrace.program.plan import plan_arena, plan_shared_arena
from headrace.program.program import Instruction, Program
from headrace.program.step import Step
from headrace.sampling.sampler import Sampler, SamplerState
from headrace.weights.packing.packed_weights import PackedWeight

AdapterRow = tuple[int, int, float, NDArray[np.uint8], NDArray[np.uint8]]
NO_FACTORS = np.zeros(0, np.float32)
_SCALE_BYTES = 2  # of a token's key in a head, and of its value

# Short texts use only the beginning of every layer's keys and values. With huge pages a single token
# would touch two of them per layer: 100 MB to be zeroed with 24 layers.
_SHORT_TEXTS_BYTES = 256 << 10


class NativeExecutor:
    """Runs a program on the thread pool, with the GIL released for the whole step.

    `matrices` are packed weights and `vectors` float32 arrays (norms, biases), by checkpoint name.
    `poison` fills dead buffers with NaN (tests). `program` is the fused program that it runs, of a `group`
    one rank's share.
    """

    def __init__(
        self,
        program: Program,
        matrices: Mapping[str, PackedWeight],
        vectors: Mapping[str, Array],
        capacity: ExecutorLimits,
        *,
        pool: _native.Pool,
        kv_type: KvType,
        kv: KvLayers | None = None,
        poison: bool = False,
        group: RankGroup | None = None,
    ) -> None:
        self.capacity = capacity
        self.program = program = fuse(program)
        lowering = Lowering(program, vectors)
        arena = plan_arena(program, max_tokens=capacity.max_tokens, max_rows=capacity.max_rows)
        shared = plan_shared_arena(program, max_tokens=capacity.max_tokens, max_rows=capacity.max_rows)
        placements = arena.placements | shared.placements
        places = [placements[value] for value in lowering.values]
        types = layer_types(program, kv_type, kv)
        caches = [
            _kv_memory(cache, program, capacity, type, NO_FACTORS if kv is None else kv.factors(index))
            for index, (cache, type) in enumerate(zip(program.caches, types, strict=True))
        ]
        self._page_memory = _page_memory(caches, capacity)
        self._inputs = [lowering.value_id(value) for value in program.inputs]
        self._executor = _native.Executor(
            pool,
            _native.allocate(arena.nbytes),
            [(place.rows, place.columns, place.offset) for place in places],
            [_weight(matrices[name]) for name in lowering.matrices],
            lowering.constants,
            caches,
            [_state_memory(state, capacity) for state in program.states],
            capacity.max_tokens,
            capacity.max_rows,
            lowering.instructions,
            poison,
            self._inputs,
            None if group is None else group.row(lowering, shared),
        )
        self._output = lowering.value_id(program.output)
        self._matrix_ids = {name: index for index, name in enumerate(lowering.matrices)}
        self._adapter_format: Literal["f32", "bf16"] = adapter_format(
            [weight.format for weight in matrices.values()]
        )

    @property
    def adapter_bytes(self) -> int:
        """See Executor."""
        return 4 if self._adapter_format == "f32" else 2

    @property
    def page_memory(self) -> PageMemory | None:
        """See PagedExecutor."""
        return self._page_memory

    def set_adapter(self, slot: int, adapter: Adapter | None) -> None:
        """See Executor."""
        kind, matrices = self._adapter_format, {} if adapter is None else dict(adapter.matrices)
        pairs: list[AdapterRow] = []
        for name, pair in matrices.items():
            rank = pair.a.shape[0] + pair.a.shape[0] % 2
            a, b = packed_a(pair.a, kind), packed_b(pair.b, kind)
            pairs.append((self._matrix_ids[name], rank, float(pair.scale), a, b))
        self._executor.set_adapter(slot, kind, pairs)

    def given(self, rows: int, columns: int) -> Array:
        """The value that the stage before made: a view of its first rows, to be written before each run."""
        view = self._executor.value(self._inputs[0], rows)
        if view.shape[1] != columns:
            raise ProgramError(f"the stage before gives {columns} columns, this one takes {view.shape[1]}")
        return view

    def run(self, step: Step) -> Array:
        """Logits [R, V], float32: a view of the arena, valid (and writable) until the next run."""
        self._run(step, timed=False)
        rows = step.tokens if self.program.output.shape[0] == "T" else step.rows
        return self._executor.value(self._output, len(rows))

    def run_multi_step(
        self,
        step: Step,
        sampler: Sampler,
        rows: Sequence[SamplerState],
        steps: int,
        *,
        lookahead_tokens: int | None = None,
        seconds: float = 0.0,
        guesses: DraftPlan = NO_DRAFTS,
        signal: _native.Signal | None = None,
    ) -> _native.MultiStepResult:
        """See MultiStepExecutor."""
        return self._executor.run_multi_step(
            self._output,
            sampler.native,
            [row.native for row in rows],
            *_arrays(step),
            steps=steps,
            lookahead_tokens=steps - 1 if lookahead_tokens is None else lookahead_tokens,
            seconds=seconds,
            texts=guesses.texts,
            depths=guesses.depths,
            token_budget=guesses.room,
            signal=signal,
        )

    def run_timed(self, step: Step) -> tuple[float, list[float]]:
        """Run a step; returns the seconds spent on RoPE tables, and the seconds of each instruction."""
        rotations_s, *seconds = self._run(step, timed=True)
        return rotations_s, seconds

    def _run(self, step: Step, *, timed: bool) -> list[float]:
        return self._executor.run(*_arrays(step), token_types=step.token_types, timed=timed)


def adapter_format(formats: Collection[str]) -> Literal["f32", "bf16"]:
    """The numbers of adapters beside weights in these formats."""
    return "f32" if all(name == "f32" for name in formats) else "bf16"


def _arrays(step: Step) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints | None]:
    return (
        step.tokens,
        step.positions,
        step.slots,
        step.query_starts,
        step.lengths,
        step.block_tables,
        step.rows,
        step.state_slots,
        step.adapters,
    )


def is_coded(kv_type: KvType | LayerType) -> bool:
    """True if keys and values are kept as codes of fewer bits, with scales."""
    return kv_type == "mixed" or KV_BITS[kv_type][1] < 16


def kv_bytes_per_page(program: Program, kv_type: KvType, page_tokens: int, kv: KvLayers | None = None) -> int:
    """Bytes of keys and values per page, summed over all layers."""
    types = layer_types(program, kv_type, kv)
    layers = zip(program.caches, types, strict=True)
    return page_tokens * sum(sum(cache_bytes(cache, program, type)) for cache, type in layers)


def cache_bytes(cache: Value, program: Program, kv_type: LayerType) -> tuple[int, int]:
    """Bytes of a token's keys and of its values in one layer."""
    scales = int(cache.shape[1]) // _head_dim(cache, program) * _SCALE_BYTES if is_coded(kv_type) else 0
    k, v = (
        int(width) * bits // 8 + scales for width, bits in zip(cache.shape[1:], KV_BITS[kv_type], strict=True)
    )
    return k, v


def uncoded_reason(program: Program, types: Sequence[LayerType]) -> str | None:
    """Why keys and values of this program cannot be kept as codes of these types, one for each cache; None if
    they can."""
    if program.states:
        return "keeps recurrent states, which are added to at every token and stay in float32"
    if any(int(cache.shape[2]) == 0 for cache in program.caches):
        return "keeps one latent row for keys and values (MLA), which rounding harms more"
    for cache, type in zip(program.caches, types, strict=True):
        size, multiple = _head_dim(cache, program), 16 if 3 in KV_BITS[type] else 4
        if size % multiple:
            return f"has heads of {size} numbers, no multiple of {multiple}"
    return None


def state_bytes(program: Program, sequences: int) -> int:
    """Bytes of the recurrent states of `sequences` sequences."""
    return program.state_width * 4 * sequences


def group_bytes(program: Program, formats: Collection[str], capacity: ExecutorLimits) -> int:
    """Bytes that the ranks of a program share: values, and inputs of products."""
    sizes = {"max_tokens": capacity.max_tokens, "max_rows": capacity.max_rows}
    return plan_shared_arena(program, **sizes).nbytes + linear_scratch(program, formats, capacity.max_tokens)


def linear_scratch(program: Program, formats: Collection[str], max_tokens: int) -> int:
    """Bytes for the inputs of products with weights in `formats`."""
    widest = max(int(v.shape[1]) for v in program.weights.values() if len(v.shape) == 2)
    return _native.linear_scratch_bytes(max_tokens, widest, sorted(formats))


def scratch_bytes(program: Program, formats: Collection[str], max_tokens: int) -> int:
    """Bytes that linears need in addition to the arena, to convert inputs for weights in `formats`."""
    names = sorted(formats)
    mixtures = (
        _moe_scratch_bytes(ins, program, names, max_tokens) for ins in program.expanded() if ins.name == "moe"
    )
    return linear_scratch(program, formats, max_tokens) + max(mixtures, default=0)


def _moe_scratch_bytes(moe: Instruction, program: Program, formats: Sequence[str], max_tokens: int) -> int:
    _, gates, _, _, down, *_ = moe.inputs
    assert gates is not None and down is not None
    experts, outer, inner = int(gates.shape[1]), int(moe.outputs[0].shape[1]), int(down.shape[1])
    top_k = program.experts_per_row(moe)
    return _native.moe_scratch_bytes(max_tokens, experts, top_k, outer, inner, formats)


def _weight(packed: PackedWeight) -> tuple[str, int, int, np.ndarray]:
    return packed.format, packed.n, packed.k, packed.data


def _kv_memory(
    cache: Value, program: Program, capacity: ExecutorLimits, kv_type: LayerType, factors: Array
) -> tuple[np.ndarray, np.ndarray, int, int, str, Array]:
    width, head_dim = int(cache.shape[1]), _head_dim(cache, program)
    slots = capacity.page_count * capacity.page_tokens
    k, v = (
        _native.allocate(slots * size, _SHORT_TEXTS_BYTES) for size in cache_bytes(cache, program, kv_type)
    )
    return k, v, width // head_dim, head_dim, kv_type, factors if is_coded(kv_type) else NO_FACTORS


def _page_memory(
    caches: Sequence[tuple[np.ndarray, np.ndarray, int, int, str, Array]], capacity: ExecutorLimits
) -> PageMemory | None:
    """Whose layout has also the factors by which keys were multiplied."""
    if capacity.state_slots:
        return None
    digest, count = blake2b(digest_size=8), capacity.page_count
    for k, v, heads, head_dim, kind, factors in caches:
        sizes = f"{heads} {head_dim} {k.size // count} {v.size // count}"
        digest.update(f"{kind} {sizes} {factors.tolist()}\n".encode())
    layout = f"{_native.isa()} {capacity.page_tokens} {digest.hexdigest()}"
    return PageMemory([part for cache in caches for part in cache[:2]], capacity.page_count, layout)


def _state_memory(state: Value, capacity: ExecutorLimits) -> tuple[np.ndarray, int]:
    width = int(state.shape[1])
    return _native.allocate(width * 4 * capacity.state_slots), width


def _head_dim(cache: Value, program: Program) -> int:
    for instruction in program.instructions:
        if instruction.name == "attend" and cache in instruction.inputs:
            return int(instruction.attr("head_dim"))
    raise ProgramError(f"{cache} is never attended to")
