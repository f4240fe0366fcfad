"""A model that is split over ranks: the bytes of one process, its memory, and what happens where one ends."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from test_stages import children

from headrace.engine.request import EngineRequest, RequestFailed
from headrace.errors import EngineStopped, UnsupportedModel, UsageError
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

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="needs memory files, as Linux has them"
)
nightly = pytest.mark.nightly
CASES = [  # golden, weights, keys and values, ranks, stages
    ("llama3", "keep", "auto", 2, 1),
    ("gemma2", "int8", "int8", 2, 1),
    ("qwen2", "int4", "auto", 2, 2),
    pytest.param(("llama2", "bf16", "auto", 4, 1), marks=nightly),
    pytest.param(("llama3", "bf16", "k8v4", 2, 3), marks=nightly),
    pytest.param(("qwen3", "int8", "auto", 2, 2), marks=nightly),
    pytest.param(("olmo2", "int8", "auto", 2, 1), marks=nightly),
    pytest.param(("granite", "keep", "auto", 2, 2), marks=nightly),
    pytest.param(("gpt_neox", "int8", "auto", 2, 1), marks=nightly),
    pytest.param(("phi3", "int4", "int4", 4, 1), marks=nightly),
    pytest.param(("starcoder2", "bf16", "auto", 2, 2), marks=nightly),
    pytest.param(("mistral_window", "int4", "int4", 2, 1), marks=nightly),
    pytest.param(("Q6_K.gguf", "keep", "auto", 2, 1), marks=nightly),
    pytest.param(("Q4_K.gguf", "keep", "int8", 2, 1), marks=nightly),
    pytest.param(("Q4_0.gguf", "keep", "auto", 2, 2), marks=nightly),
]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """All processes of ranks end with their model."""
    yield
    _, alive = psutil.wait_procs(children(os.getpid()), timeout=60)
    assert not alive


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_are_those_of_one_process(case: tuple[str, str, str, int, int], tmp_path: Path) -> None:
    golden, weights, kept, ranks, stages = case
    folder = small_model(tmp_path, golden)
    rng = random.Random(golden)
    stems = [[rng.randrange(VOCABULARY) for _ in range(60)] for _ in range(4)]
    requests = [random_request(rng, stems) for _ in range(25)]
    alone = answers_alone(
        folder, requests, quantization=weights, kv_cache_dtype=kept, max_batch_tokens=256, max_model_len=128
    )
    options = EngineOptions(
        quantization=weights,  # type: ignore[arg-type]
        kv_cache_dtype=kept,  # type: ignore[arg-type]
        tensor_parallel_size=ranks,
        pp=stages,
        threads=2 * ranks,
        max_num_seqs=12,
        max_batch_tokens=33,
        max_model_len=128,
    )
    model = load_model(folder, options)
    try:
        assert len(model.plan.process_bytes) == len(children(os.getpid())) + 1 == ranks * stages
        running = [Running(model.engine, request) for request in requests for _ in range(2)]
        for index, one in enumerate(running):
            assert one.finish().bits == alone[index // 2].bits, requests[index // 2]
    finally:
        model.close()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_rank_that_is_killed_is_named(
    tmp_path: Path, stages: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = EngineOptions(tensor_parallel_size=2, pp=stages, threads=2)
    model = load_model(str(tiny_model(tmp_path)), options)
    try:
        request = EngineRequest(prompt=(5, 6, 7), params=SamplingParams(max_tokens=100, ignore_eos=True))
        running = Running(model.engine, request)
        running.next()
        last = max(children(os.getpid()), key=lambda child: child.pid)
        last.send_signal(signal.SIGKILL)
        running.finish()
        psutil.wait_procs([last], timeout=60)
        with pytest.raises(EngineStopped):
            while True:
                again = Running(model.engine, request).finish().terminal[0]
                if isinstance(again, RequestFailed):
                    raise again.error
        assert re.search(r"process \d of \d was ended by SIGKILL", caplog.text)
    finally:
        model.close()


def test_a_worker_goes_on_where_a_rank_was_killed(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    params = SamplingParams(max_tokens=100, ignore_eos=True, temperature=1.0, seed=3, logprobs=2)
    request = EngineRequest(prompt=(5, 6, 7), params=params)
    [alone] = answers_alone(folder, [request])
    options = EngineOptions(tensor_parallel_size=2, threads=2, max_model_len=160)
    loader = WorkerLoader(ModelSpec(name="tiny", model=folder, options=options))
    loader.plan(None)
    model = loader.load(lambda done, total: None)
    try:
        running = [Running(model.engine, request) for _ in range(3)]
        running[0].next()
        [rank] = children(model.engine.worker_pid)  # type: ignore[attr-defined]
        rank.send_signal(signal.SIGKILL)
        for one in running:
            assert one.finish().bits == alone.bits
    finally:
        model.close()


def test_each_rank_needs_its_part_of_the_memory() -> None:
    asked = EngineOptions(max_batch_tokens=64, kv_cache_memory=64 << 20, speculative_model="none")
    with prepare("mini", asked) as one:
        counts = [head for head in (2, 3, 4) if one.model.config.kv_heads % head == 0]
        with prepare("mini", replace(asked, tensor_parallel_size=counts[0])) as split:
            assert split.plan.page_count == one.plan.page_count
            assert split.plan.weights_bytes < 1.1 * one.plan.weights_bytes  # of all ranks together
            assert split.plan.kv_bytes == one.plan.kv_bytes
            own = [size - split.plan.base_bytes // counts[0] for size in split.plan.process_bytes]
            assert max(own) < 0.7 * one.plan.own_bytes


def test_what_is_not_split_is_refused_by_name(tmp_path: Path) -> None:
    folder = str(tiny_model(tmp_path))
    for given in ({"backend": "numpy"}, {"speculative_layers": 1}):
        with pytest.raises(UsageError, match="tensor_parallel_size is 2 with"):
            LLM(folder, tensor_parallel_size=2, **given)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="an encoder runs in one process"):
        LLM(folder, tensor_parallel_size=2, pooling="mean")
    with pytest.raises(UnsupportedModel, match="2 KV heads, which must divide by it: use 1, 2"):
        LLM(folder, tensor_parallel_size=3)
    with pytest.raises(UnsupportedModel, match="is a mixture of experts"):
        LLM(str(tiny_model(tmp_path, "mixtral")), tensor_parallel_size=2)
    adapter = write_adapter(tmp_path / "adapter", Path(folder))
    with (
        LLM(folder, tensor_parallel_size=2, threads=2) as llm,
        pytest.raises(UnsupportedModel, match="take no adapters: load it without"),
    ):
        llm.model.engine.load_adapter(adapter)
