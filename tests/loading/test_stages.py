"""A model in several processes: the bytes of one, its memory, and what happens where one of them ends."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from headrace.engine.request import EngineRequest, RequestFailed
from headrace.errors import EngineStopped, OutOfMemory, UnsupportedModel, UsageError
from headrace.llm import LLM
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.sampling.params import SamplingParams
from headrace.workers.model_spec import ModelSpec
from headrace.workers.worker_loader import WorkerLoader
from peft_adapters import write_adapter
from random_requests import VOCABULARY, answers_alone, random_request, small_model
from tiny import Running, tiny_model

CASES = [  # golden, weights, keys and values, stages
    ("llama3", "keep", "auto", 2),
    ("gemma2", "int8", "int8", 3),
    pytest.param(("qwen3", "bf16", "auto", 4), marks=pytest.mark.nightly),
    pytest.param(("mistral_window", "int4", "int4", 2), marks=pytest.mark.nightly),
    pytest.param(("llama3_tied", "int4", "auto", 3), marks=pytest.mark.nightly),
    pytest.param(("qwen3_moe_mixed", "int4", "auto", 2), marks=pytest.mark.nightly),
    pytest.param(("Q6_K.gguf", "keep", "auto", 2), marks=pytest.mark.nightly),
    pytest.param(("mamba2_groups", "int8", "auto", 2), marks=pytest.mark.nightly),
    pytest.param(("deepseek_v3", "int8", "auto", 2), marks=pytest.mark.nightly),
    pytest.param(("gpt_oss", "keep", "k8v4", 2), marks=pytest.mark.nightly),
    pytest.param(("gemma2", "int4", "int3", 2), marks=pytest.mark.nightly),
]


def children(pid: int) -> list[psutil.Process]:
    """Processes of stages and ranks below one."""
    return [child for child in psutil.Process(pid).children(recursive=True) if _is_part(child)]


def _is_part(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # one that has ended, of another test, has no command line
        return "headrace.loading.stage_process" in process.cmdline()
    return False


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """All processes of stages end with their model."""
    yield
    left = children(os.getpid())
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_are_those_of_one_process(case: tuple[str, str, str, int], tmp_path: Path) -> None:
    golden, weights, kept, stages = case
    folder = small_model(tmp_path, golden)
    rng = random.Random(golden)
    stems = [[rng.randrange(VOCABULARY) for _ in range(90)] for _ in range(4)]
    requests = [random_request(rng, stems) for _ in range(40)]
    alone = answers_alone(folder, requests, quantization=weights, kv_cache_dtype=kept, max_batch_tokens=256)
    options = EngineOptions(
        quantization=weights,  # type: ignore[arg-type]
        kv_cache_dtype=kept,  # type: ignore[arg-type]
        pp=stages,
        threads=2,
        max_num_seqs=12,
        max_batch_tokens=33,
        max_model_len=160,
    )
    model = load_model(folder, options)
    try:
        running = [Running(model.engine, request) for request in requests for _ in range(2)]
        for index, one in enumerate(running):
            assert one.finish().bits == alone[index // 2].bits, requests[index // 2]
    finally:
        model.close()


def test_a_stage_that_is_killed_is_named(tmp_path: Path) -> None:
    model = load_model(str(tiny_model(tmp_path)), EngineOptions(pp=3, threads=1))
    try:
        request = EngineRequest(prompt=(5, 6, 7), params=SamplingParams(max_tokens=100, ignore_eos=True))
        running = Running(model.engine, request)
        running.next()
        last = max(children(os.getpid()), key=lambda child: child.pid)
        last.send_signal(signal.SIGKILL)
        outcome = running.finish()
        if isinstance(outcome.terminal[0], RequestFailed):  # else it was done before that
            error = outcome.terminal[0].error
            assert isinstance(error, EngineStopped)
        psutil.wait_procs([last], timeout=60)
        with pytest.raises(EngineStopped):
            while True:
                again = Running(model.engine, request).finish().terminal[0]
                if isinstance(again, RequestFailed):
                    raise again.error
    finally:
        model.close()


def test_a_worker_goes_on_where_a_stage_was_killed(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    params = SamplingParams(max_tokens=100, ignore_eos=True, temperature=1.0, seed=3, logprobs=2)
    request = EngineRequest(prompt=(5, 6, 7), params=params)
    [alone] = answers_alone(folder, [request])
    options = EngineOptions(pp=2, threads=1, max_model_len=160)
    loader = WorkerLoader(ModelSpec(name="tiny", model=folder, options=options))
    loader.plan(None)
    model = loader.load(lambda done, total: None)
    try:
        assert model.plan.process_bytes and len(model.plan.process_bytes) == 2
        running = [Running(model.engine, request) for _ in range(3)]
        running[0].next()
        [stage] = children(model.engine.worker_pid)  # type: ignore[attr-defined]
        stage.send_signal(signal.SIGKILL)
        for one in running:
            assert one.finish().bits == alone.bits
    finally:
        model.close()


def test_a_budget_is_that_of_each_process() -> None:
    asked = EngineOptions(max_batch_tokens=64, kv_cache_memory=64 << 20)
    with prepare("mini", asked) as one:
        budget = one.plan.base_bytes + one.plan.own_bytes * 3 // 4
        with pytest.raises(OutOfMemory):
            prepare("mini", replace(asked, memory_bytes=budget))
        with prepare("mini", replace(asked, memory_bytes=budget, pp=2)) as two:
            assert two.plan.page_count == one.plan.page_count
            assert max(two.plan.process_bytes) <= budget < sum(two.plan.process_bytes)
            assert all(stage.program.caches for stage in two.stages)
        with pytest.raises(OutOfMemory, match=r"--pp"):
            prepare("mini", replace(asked, memory_bytes=one.plan.base_bytes + one.plan.own_bytes // 2, pp=2))


def test_what_needs_one_process_is_refused_by_name(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    for given in ({"backend": "numpy"}, {"speculative_layers": 1}):
        with pytest.raises(UsageError, match="pp is 2 with"):
            LLM(folder, pp=2, **given)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="an encoder runs in one process"):
        LLM(folder, pp=2, pooling="mean")
    with LLM(folder, pp=2, threads=1) as llm:
        assert llm.model.plan.process_bytes
        with pytest.raises(UnsupportedModel, match="take no adapters: load it without pp"):
            llm.model.engine.load_adapter(write_adapter(tmp_path / "adapter", Path(folder)))
