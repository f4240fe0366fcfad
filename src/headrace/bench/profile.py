"""`headrace bench profile`: the time of each instruction of a step, and the minimum the machine allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from headrace import _native
from headrace.bench.workload import Workload, prepare_workload
from headrace.errors import UsageError
from headrace.executors.kv_layers import KvLayers, KvType, layer_types
from headrace.executors.machine_limits import Limits, machine_limits
from headrace.executors.native import NativeExecutor, cache_bytes
from headrace.kv.pages import pages_for
from headrace.loading.engine_parts import load_weights, make_executor
from headrace.loading.loader import usable_cores
from headrace.loading.memory_plan import shares_per_token
from headrace.loading.options import EngineOptions
from headrace.loading.roofline import arithmetic_of, peak_of
from headrace.program.program import Instruction, Program
from headrace.program.step import Step
from headrace.weights.packing.packed_weights import WeightSpec, predicted_bytes

Progress = Callable[[str], None]
OTHER = "(rotations)"


class ProfilePart(Struct, frozen=True, kw_only=True):
    """All instructions of one kind in a step. `least_s` is the minimum time by the machine's limits, None
    if the work is too small to count; `bound` is the limit that determines it: "bandwidth", or a peak.
    """

    name: str
    count: int
    seconds: float
    least_s: float | None
    bound: str


class StepProfile(Struct, frozen=True, kw_only=True):
    """One kind of step: total time (`step_s`, normal execution) and its parts (timed one by one)."""

    title: str
    step_s: float
    parts: tuple[ProfilePart, ...]


class _Work(Struct, frozen=True):
    """The minimum work of an instruction."""

    nbytes: float = 0.0
    operations: float = 0.0
    format: str = ""


def bench_profile(
    workload: Workload, options: EngineOptions, *, repeats: int, progress: Progress = lambda text: None
) -> tuple[Limits, list[StepProfile]]:
    """Profiles of a prefill step (the last chunk of one prompt) and of a decode step.

    Raises the errors of loading, and UsageError for an executor without timed instructions.
    """
    if options.backend != "native":
        raise UsageError(f"--backend {options.backend} cannot be profiled: use native", param="backend")
    threads = options.threads or usable_cores()
    progress("measuring the machine")
    limits = machine_limits(threads, None)
    with prepare_workload(workload, options) as prepared:
        progress("packing weights")
        pool = _native.Pool(threads)
        executor = make_executor(prepared, options, pool, load_weights(prepared, options, pool))
    assert isinstance(executor, NativeExecutor)
    counter = _Counter(executor.program, prepared.wanted, prepared.plan.kv_type, prepared.kv)
    chunk = min(workload.prompt, options.max_batch_tokens)
    progress("filling keys and values")
    _fill(executor, workload, chunk)
    found: list[StepProfile] = []
    for title, new, sequences in (
        (f"prefill: the last {chunk:,} of a prompt of {workload.prompt:,} tokens", chunk, 1),
        (f"decode: {workload.batch} x 1 token after {workload.prompt:,}", 1, workload.batch),
    ):
        progress(title)
        length = workload.prompt if new > 1 else workload.prompt + 1
        step = _step(
            new=min(new, length), length=length, sequences=sequences, pages=prepared.plan.page_tokens
        )
        found.append(_profile(title, executor, step, counter, limits, repeats))
    return limits, found


def _fill(executor: NativeExecutor, workload: Workload, chunk: int) -> None:
    """Compute all prompts first: memory that was never written maps to a single zero page, which would be
    read from the CPU caches.
    """
    pages = executor.capacity.page_tokens
    per_sequence = pages_for(workload.prompt + 1, pages)
    for sequence in range(workload.batch):
        for end in range(chunk, workload.prompt + chunk, chunk):
            length = min(end, workload.prompt)
            new = length - (end - chunk)
            first = sequence * per_sequence
            executor.run(_step(new=new, length=length, sequences=1, pages=pages, first_page=first))


def _step(*, new: int, length: int, sequences: int, pages: int, first_page: int = 0) -> Step:
    """Each sequence has `length` tokens, of which the last `new` are computed."""
    per_sequence = pages_for(length, pages)
    tables = np.arange(sequences * per_sequence, dtype=np.int32).reshape(sequences, per_sequence) + first_page
    positions = np.tile(np.arange(length - new, length, dtype=np.int32), (sequences, 1))
    slots = np.take_along_axis(tables, positions // pages, axis=1) * pages + positions % pages
    starts = np.arange(sequences + 1, dtype=np.int32) * new
    return Step(
        tokens=(np.arange(sequences * new, dtype=np.int32) * 7 + 1) % 97,
        positions=positions.ravel(),
        slots=slots.astype(np.int32).ravel(),
        query_starts=starts,
        lengths=np.full(sequences, length, np.int32),
        block_tables=tables,
        rows=starts[1:] - 1,
        state_slots=np.arange(sequences, dtype=np.int32),
    )


def _profile(
    title: str, executor: NativeExecutor, step: Step, counter: _Counter, limits: Limits, repeats: int
) -> StepProfile:
    executor.run(step)
    whole: list[float] = []
    rows: list[list[float]] = []
    for _ in range(repeats):  # alternate, so that both see the machine in the same state
        begin_s = time.perf_counter()
        executor.run(step)
        whole.append(time.perf_counter() - begin_s)
        rotations_s, seconds = executor.run_timed(step)
        rows.append([rotations_s, *seconds])
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    groups: dict[tuple[str, str], list[tuple[float, float | None]]] = {}
    for instruction, seconds_ in zip(executor.program.instructions, medians[1:], strict=True):
        least_s, bound = counter.least(instruction, step, limits)
        groups.setdefault((counter.label(instruction), bound), []).append((seconds_, least_s))
    parts = [
        ProfilePart(
            name=name,
            count=len(entries),
            seconds=sum(seconds for seconds, _ in entries),
            least_s=sum(least or 0.0 for _, least in entries) if bound else None,
            bound=bound,
        )
        for (name, bound), entries in groups.items()
    ]
    parts.append(ProfilePart(name=OTHER, count=1, seconds=medians[0], least_s=None, bound=""))
    parts.sort(key=lambda part: -part.seconds)
    return StepProfile(title=title, step_s=statistics.median(whole), parts=tuple(parts))


class _Counter:
    """Counts the bytes and operations that instructions need."""

    def __init__(
        self, program: Program, wanted: tuple[WeightSpec, ...], kv_type: KvType, kv: KvLayers | None
    ) -> None:
        self._shares: Mapping[str, float] = shares_per_token(program)
        self._wanted = {weight.name: weight for weight in wanted}
        self._program = program
        self._kv_types = dict(zip(program.caches, layer_types(program, kv_type, kv), strict=True))
        self._kv_format = "f32" if kv_type == "f32" else "bf16"  # codes are unpacked to bf16

    def label(self, instruction: Instruction) -> str:
        """The instruction's name with the sizes of its matrices."""
        weights = self._weights(instruction)
        if not weights:
            return instruction.name
        act = any(part.name == "gated_act" for part in instruction.expand())
        outputs = "+".join(f"{weight.n:,}" for weight in weights)
        return (
            f"{instruction.name} {weights[0].k:,} -> {outputs} {weights[0].format}{' gated' if act else ''}"
        )

    def least(self, instruction: Instruction, step: Step, limits: Limits) -> tuple[float | None, str]:
        """Minimum time in seconds, and the limit that determines it."""
        count = self._attention if instruction.name == "attend" else self._products
        work = count(instruction, step)
        if not work.nbytes:
            return None, ""
        reading_s = work.nbytes / limits.read_bytes_per_s
        computing_s = work.operations / peak_of(work.format, limits)
        bound = "bandwidth" if reading_s > computing_s else arithmetic_of(work.format)
        return max(reading_s, computing_s), bound

    def _weights(self, instruction: Instruction) -> list[WeightSpec]:
        names = {
            value.name
            for part in instruction.expand()
            if part.name in ("linear", "head_linear", "moe")
            for value in part.inputs
            if value is not None
        }
        return [weight for name, weight in self._wanted.items() if name in names]

    def _products(self, instruction: Instruction, step: Step) -> _Work:
        weights = self._weights(instruction)
        if not weights:
            return _Work()
        rows = len(step.rows) if instruction.outputs[0].shape[0] == "R" else len(step.tokens)
        nbytes = operations = 0.0
        for weight in weights:
            share = self._shares[weight.name]
            nbytes += min(1.0, share * rows) * predicted_bytes([weight])
            operations += 2.0 * weight.n * weight.k * share * rows
        return _Work(nbytes, operations, weights[0].format)

    def _attention(self, attend: Instruction, step: Step) -> _Work:
        q, cache = attend.inputs[:2]
        assert q is not None and cache is not None
        lengths, new = step.lengths.tolist(), np.diff(step.query_starts).tolist()
        window = attend.attr("window") or max(lengths)
        keys_read = seen = 0
        for length, count in zip(lengths, new, strict=True):
            keys_read += min(length, window + count - 1)
            seen += sum(min(keys, window) for keys in range(length - count + 1, length + 1))
        key_bytes = sum(cache_bytes(cache, self._program, self._kv_types[cache]))
        heads = int(q.shape[1]) // attend.attr("head_dim")
        per_key = 2.0 * heads * (attend.attr("head_dim") + attend.attr("value_dim"))
        return _Work(keys_read * key_bytes, seen * per_key, self._kv_format)
