"""Mixtures of experts on the native executor: equal to NumPy in every format; same bits in any batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from golden import relative_error
from headrace import _native
from headrace.errors import ProgramError
from headrace.executors.executor import ExecutorLimits
from headrace.executors.native import NativeExecutor, scratch_bytes
from headrace.executors.reference import ReferenceExecutor
from headrace.executors.torch_executor import TorchExecutor
from headrace.ops.builder import Builder
from headrace.ops.embed import embed
from headrace.ops.gather import gather
from headrace.ops.linear import linear
from headrace.ops.moe import moe
from headrace.ops.route import route
from headrace.ops.value import Array, Ints, Value
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.step import Step
from headrace.program.verify import verify
from headrace.weights import formats
from headrace.weights.formats import FORMATS, pack, unpack
from headrace.weights.packing.packed_weights import PackedWeight

pytestmark = pytest.mark.isas
ROWS = 40
CAPACITY = ExecutorLimits(max_tokens=ROWS, max_rows=ROWS, page_count=1, page_tokens=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sizes of a mixture and its routing."""

    experts: int = 8
    top_k: int = 2
    outer: int = 64
    inner: int = 96
    kind: str = "silu"
    router: str = "softmax"
    groups: int = 1
    bias: bool = False


CASES = {
    "whole strips": Case(),
    "strips shared by experts": Case(experts=7, top_k=3, outer=40, inner=20, kind="gelu_tanh"),
    "odd sizes and biases": Case(experts=5, top_k=2, outer=33, inner=45, kind="swiglu_clamped", bias=True),
    "groups": Case(experts=24, top_k=6, outer=32, inner=8, router="sigmoid", groups=4),
    "all experts": Case(experts=3, top_k=3, outer=48, inner=32, kind="gelu"),
}


def program_of(case: Case) -> Program:
    e, outer, inner = case.experts, case.outer, case.inner

    def define(m: Builder) -> Value:
        x = embed(m.tokens, m.weight("x", ROWS, outer))
        logits = linear(x, m.weight("router", e, outer), None)
        gates = route(
            logits,
            m.weight("choice", e) if case.router == "sigmoid" else None,
            kind=case.router,
            top_k=case.top_k,
            groups=case.groups,
            top_groups=max(case.groups // 2, 1),
            normalize=1,
            scale=1.5,
        )
        sizes = {"gate": (e * inner, outer), "up": (e * inner, outer), "down": (e * outer, inner)}
        weights = [m.weight(name, *size) for name, size in sizes.items()]
        biases = [m.weight(f"{name} bias", n) if case.bias else None for name, (n, _) in sizes.items()]
        return gather(moe(x, gates, *weights, *biases, kind=case.kind), m.rows)

    return verify(record(define))


def random_weights(program: Program) -> dict[str, Array]:
    random = np.random.default_rng(7)
    made: dict[str, Array] = {}
    for name, value in program.weights.items():
        draw = random.standard_normal([int(size) for size in value.shape], dtype=np.float32)
        made[name] = 0.3 * draw if draw.ndim == 1 or name == "choice" else draw
        if draw.ndim == 2 and name != "x":
            made[name] *= 3 / np.float32(draw.shape[1]) ** 0.5
    return made


def packed(weights: dict[str, Array], weight_format: str) -> tuple[dict[str, PackedWeight], dict[str, Array]]:
    """The experts in a format, the router's inputs in float32; and the dequantized experts."""
    matrices: dict[str, PackedWeight] = {}
    meant = dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 2:
            form, (n, k) = "f32" if name in ("x", "router") else weight_format, weight.shape
            data = _native.allocate(formats.packed_nbytes(form, n, k))
            data[:] = pack(form, weight)
            matrices[name] = PackedWeight(form, n, k, data)
            meant[name] = unpack(form, data, n, k)
    return matrices, meant


def executor(
    program: Program, matrices: dict[str, PackedWeight], weights: dict[str, Array], threads: int
) -> NativeExecutor:
    vectors = {name: weight for name, weight in weights.items() if weight.ndim == 1}
    pool = _native.Pool(threads)
    return NativeExecutor(program, matrices, vectors, CAPACITY, pool=pool, kv_type="f32", poison=True)


def step_of(tokens: list[int] | range) -> Step:
    ids: Ints = np.array(tokens, np.int32)
    none: Ints = np.zeros(0, np.int32)
    rows = np.arange(len(ids), dtype=np.int32)
    return Step(
        tokens=ids,
        positions=np.zeros_like(ids),
        slots=np.zeros_like(ids),
        query_starts=np.zeros(1, np.int32),
        lengths=none,
        block_tables=np.zeros((0, 1), np.int32),
        rows=rows,
        state_slots=none,
    )


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_equals_numpy_on_the_same_weights(case: str, weight_format: str) -> None:
    program = program_of(CASES[case])
    matrices, weights = packed(random_weights(program), weight_format)
    expected = ReferenceExecutor(program, weights, CAPACITY).run(step_of(range(ROWS)))
    got = executor(program, matrices, weights, 2).run(step_of(range(ROWS)))
    # Two linears in a row, and an activation between them that may double an error.
    assert (
        np.square(got - expected).mean() ** 0.5
        <= 4 * formats.tolerance(weight_format) * np.square(expected).mean() ** 0.5
    )


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("case", ["strips shared by experts", "odd sizes and biases", "groups"])
def test_neither_batch_nor_threads_change_a_bit(case: str, weight_format: str) -> None:
    program = program_of(CASES[case])
    matrices, weights = packed(random_weights(program), weight_format)
    alone = executor(program, matrices, weights, 1)
    expected = np.concatenate([alone.run(step_of([row])).copy() for row in range(ROWS)])
    random = np.random.default_rng(3)
    for threads in (1, 2, 5):
        run = executor(program, matrices, weights, threads).run
        assert np.array_equal(run(step_of(range(ROWS))), expected)
        for _ in range(10):
            rows = random.integers(0, ROWS, random.integers(1, ROWS)).tolist()
            assert np.array_equal(run(step_of(rows)), expected[rows])


@pytest.mark.parametrize("case", CASES)
def test_torch_equals_numpy(case: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install headrace[torch]")
    program = program_of(CASES[case])
    weights = random_weights(program)
    expected = ReferenceExecutor(program, weights, CAPACITY).run(step_of(range(ROWS)))
    got = TorchExecutor(program, weights, CAPACITY, device="cpu").run(step_of(range(ROWS)))
    assert relative_error(got, expected) <= 1e-5


def test_the_scratch_is_in_the_memory_plan() -> None:
    program = program_of(CASES["whole strips"])
    moe_bytes = _native.moe_scratch_bytes(ROWS, 8, 2, 64, 96, ["f32"])
    assert moe_bytes >= 2 * ROWS * (2 * 96 + 96) * 4
    linear_bytes = _native.linear_scratch_bytes(ROWS, 96, ["f32"])
    assert scratch_bytes(program, {"f32"}, ROWS) == linear_bytes + moe_bytes


def test_scratch_holds_inputs_in_the_formats_that_weights_need() -> None:
    def nbytes(*formats: str) -> int:
        return _native.linear_scratch_bytes(512, 2048, formats)

    assert nbytes("int4") == nbytes("int4", "int8") < nbytes("bf16") < nbytes("int4", "bf16")
    assert nbytes("q4_0") == nbytes("q4_0", "q6_k") < nbytes("q4_0", "f16")
    with pytest.raises(ValueError, match="int5"):
        nbytes("int5")


def test_gates_without_a_route_are_rejected() -> None:
    def define(m: Builder) -> Value:
        x = embed(m.tokens, m.weight("x", ROWS, 8))
        gates = linear(x, m.weight("router", 2, 8), None)
        weights = (m.weight("gate", 16, 8), m.weight("up", 16, 8), m.weight("down", 16, 8))
        return gather(moe(x, gates, *weights, None, None, None, kind="silu"), m.rows)

    program = record(define)
    matrices, weights = packed(random_weights(program), "f32")
    with pytest.raises(ProgramError, match="must come from a route"):
        executor(program, matrices, weights, 1)
