"""The torch executor against the goldens, against the NumPy executor op by op, and without torch."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

import headrace.ops
from golden import (
    CAPACITY,
    NAMES,
    Chunk,
    load_golden,
    make_step,
    relative_error,
    run_greedy,
    scattered_pages,
)
from headrace.errors import ProgramError, UsageError
from headrace.executors.reference import ReferenceExecutor
from headrace.executors.torch_executor import TorchExecutor
from headrace.executors.torch_ops import OPERATIONS
from headrace.ops.act import FUNCTIONS
from headrace.ops.kv_write import KvCache
from headrace.ops.op import Op
from headrace.ops.value import Array
from headrace.program.program import Instruction
from headrace.program.step import Step


@pytest.fixture
def torch() -> object:
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install headrace[torch]")


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, torch: object) -> Iterator[str]:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    yield request.param


@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name: str, device: str) -> None:
    golden = load_golden(name)
    executor = TorchExecutor(golden.program, golden.weights, CAPACITY, device=device)
    logits, tokens = run_greedy(executor, golden)
    assert logits.dtype == np.float32
    assert relative_error(logits, golden.logits) <= 1e-4
    assert tokens == golden.greedy.tolist()


@pytest.mark.parametrize(
    "name",
    ["deepseek_v3", "gemma2", "gpt2", "gpt_oss", "llama3", "mistral_window", "qwen3_moe", "qwen3_yarn"],
)
def test_equals_numpy_after_every_instruction_of_a_ragged_step(name: str, device: str) -> None:
    golden = load_golden(name)
    executors = (
        ReferenceExecutor(golden.program, golden.weights, CAPACITY),
        TorchExecutor(golden.program, golden.weights, CAPACITY, device=device),
    )
    traces: tuple[list[tuple[str, tuple[Array, ...]]], ...] = ([], [])
    for executor, trace in zip(executors, traces, strict=True):

        def keep(instruction: Instruction, outputs: tuple[Array, ...], trace: list = trace) -> None:
            trace.append((instruction.name, outputs))

        executor.run(make_step(Chunk(golden.prompt[:19], 0, scattered_pages(0))))
        executor.run(_ragged_step(golden.prompt), trace=keep)
    for (name, expected), (other_name, got) in zip(*traces, strict=True):
        assert name == other_name
        for one, other in zip(expected, got, strict=True):
            assert relative_error(other, one) <= 1e-5, name


def test_bfloat16_stays_near_float32(device: str) -> None:
    golden = load_golden("llama2_bf16")
    executor = TorchExecutor(golden.program, golden.weights, CAPACITY, device=device, data_type="bfloat16")
    logits = executor.run(make_step(Chunk(golden.prompt, 0, scattered_pages(0))))
    assert logits.dtype == np.float32
    assert 1e-4 < relative_error(logits, golden.logits) <= 0.05


def test_every_op_has_a_call() -> None:
    assert set(OPERATIONS) == set(_ops())


@pytest.mark.parametrize("window", [0, 3])
def test_softcap_follows_the_definition(torch: object, window: int) -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((n, 8), dtype=np.float32) for n in (3, 16, 16))
    attrs = {"head_dim": 4, "value_dim": 4, "page_tokens": 8, "scale": 2.0, "window": window, "softcap": 1.5}
    places = np.array([0, 3]), np.array([11]), np.array([[1, 0]])
    expected = _ops()["attend"].body(q, KvCache(k, v), *places, None, **attrs)
    tensors = KvCache(torch.tensor(k), torch.tensor(v))
    tables = torch.tensor(places[2])
    got = OPERATIONS["attend"](torch, torch.tensor(q), tensors, *places[:2], tables, None, **attrs)
    assert relative_error(got.numpy(), expected) <= _ops()["attend"].tolerance


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_act_follows_the_definition(torch: object, kind: str) -> None:
    x = np.linspace(-20, 20, 101, dtype=np.float32)[None]
    got = OPERATIONS["act"](torch, torch.tensor(x), kind=kind)
    assert relative_error(got.numpy(), _ops()["act"].body(x, kind=kind)) <= _ops()["act"].tolerance


def test_an_unknown_op_is_refused(torch: object) -> None:
    golden = load_golden("llama2")
    strange = replace(golden.program.instructions[0], name="convolve")
    program = replace(golden.program, instructions=(strange, *golden.program.instructions[1:]))
    with pytest.raises(ProgramError, match="convolve"):
        TorchExecutor(program, golden.weights, CAPACITY)


def test_a_missing_device_is_refused(torch: object) -> None:
    golden = load_golden("llama2")
    with pytest.raises(UsageError, match="no device 'abacus' here"):
        TorchExecutor(golden.program, golden.weights, CAPACITY, device="abacus")


def test_error_without_torch_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    golden = load_golden("llama2")
    with pytest.raises(UsageError, match=r"pip install headrace\[torch\]"):
        TorchExecutor(golden.program, golden.weights, CAPACITY)


def _ragged_step(prompt: Array) -> Step:
    """A decode row of a sequence with 19 tokens, a whole prompt, and the first token of a third sequence."""
    chunks = (prompt[19:20], 19), (prompt, 0), (prompt[:1], 0)
    return make_step(
        *(Chunk(tokens, cached, scattered_pages(i)) for i, (tokens, cached) in enumerate(chunks))
    )


def _ops() -> dict[str, Op]:
    modules = (
        importlib.import_module(f"headrace.ops.{m.name}") for m in pkgutil.iter_modules(headrace.ops.__path__)
    )
    found = (value for module in modules for value in vars(module).values() if isinstance(value, Op))
    return {one.name: one for one in found}
