"""The memory plan against what the process really takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config.model_settings import KvCacheDtype
from headrace.engine.client import MemoryPlan
from headrace.errors import UsageError
from headrace.executors.kv_layers import KvLayers
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.weights.packing.packed_weights import predicted_bytes
from random_model import random_model
from tiny import tiny_model

# Loads the model, fills every page of KV memory and runs full steps, then prints plan and resident bytes.
MEASURE = """
import json, queue, sys, psutil
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.engine.request import EngineRequest, RequestFinished
from headrace.sampling.params import SamplingParams
model = load_model(sys.argv[1], EngineOptions(quantization=sys.argv[2], max_num_seqs=4))
events = queue.SimpleQueue()
for number in range(4):
    prompt = tuple((7 * number + i) % 1000 for i in range(model.context_length - 2))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    model.engine.submit(EngineRequest(prompt=prompt, params=params), events.put)
ended = 0
while ended < 4:
    ended += isinstance(events.get()[-1], RequestFinished)
print(json.dumps([model.plan.total_bytes, psutil.Process().memory_info().rss, model.plan.base_bytes]))
model.close()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 million parameters, 100 MB in bf16."""
    target = tmp_path_factory.mktemp("plan") / "model"
    return random_model(target, hidden=768, intermediate=2048, layers=8)


@pytest.mark.parametrize("weights", ["keep", "int4"])
def test_the_plan_is_within_five_percent_of_resident_memory(folder: Path, weights: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), weights], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    planned, resident, base = json.loads(run.stdout)
    print(
        f"{weights}: planned {planned / 1e6:.1f} MB, resident {resident / 1e6:.1f} MB, base {base / 1e6:.1f}"
    )
    assert abs(planned - resident) <= 0.05 * resident


def test_quantized_plans_are_smaller() -> None:
    plans = {}
    for weights in ("keep", "int8", "int4"):
        prepared = prepare("novelette", EngineOptions(quantization=weights))
        prepared.checkpoint.close()
        plans[weights] = prepared.plan
    assert plans["int4"].weights_bytes < plans["int8"].weights_bytes < plans["keep"].weights_bytes
    assert plans["int4"].weight_bytes_per_token < 0.38 * plans["keep"].weight_bytes_per_token


def test_memory_for_keys_and_values_follows_the_options() -> None:
    def pages(options: EngineOptions) -> int:
        prepared = prepare("novelette", options)
        prepared.checkpoint.close()
        return prepared.plan.page_count

    assert pages(EngineOptions(max_num_seqs=1)) == 32  # one context of 512 tokens
    assert pages(EngineOptions(max_num_seqs=4)) == 128
    assert pages(EngineOptions(max_num_seqs=4, max_model_len=64)) == 16
    one = prepare("novelette", EngineOptions(max_num_seqs=1))
    one.checkpoint.close()
    assert pages(EngineOptions(kv_cache_memory=one.plan.kv_bytes // 2)) == 16


@pytest.mark.parametrize(
    ("kv_type", "share"), [("int8", 0.53125), ("k8v4", 0.40625), ("int4", 0.28125), ("int3", 0.21875)]
)
def test_codes_make_room_for_more_pages(kv_type: KvCacheDtype, share: float) -> None:
    """Of novelette, whose heads have 32 numbers: 2 bytes of scale for each 32 or 16 bytes."""
    plans: list[MemoryPlan] = []
    kinds: tuple[KvCacheDtype, KvCacheDtype] = ("bf16", kv_type)
    for kept in kinds:
        options = EngineOptions(kv_cache_dtype=kept, kv_cache_memory=1 << 21, max_num_seqs=64)
        prepared = prepare("novelette", options)
        prepared.checkpoint.close()
        plans.append(prepared.plan)
    assert plans[1].kv_type == kv_type
    assert plans[1].kv_bytes / plans[1].page_count == share * plans[0].kv_bytes / plans[0].page_count
    assert plans[1].page_count == pytest.approx(plans[0].page_count / share, rel=0.01)


@pytest.mark.parametrize(
    ("golden", "reason"),
    [
        ("mamba2", "keeps recurrent states"),
        ("deepseek_v3", r"one latent row for keys and values \(MLA\)"),
        ("llama_odd", "heads of 10 numbers, no multiple of 4"),
    ],
)
def test_models_that_cannot_have_codes_are_refused(tmp_path: Path, golden: str, reason: str) -> None:
    with pytest.raises(
        UsageError, match=f"kv_cache_dtype int8: the model .*{reason}.* use auto, bf16 or f32"
    ):
        prepare(str(tiny_model(tmp_path, golden)), EngineOptions(kv_cache_dtype="int8"))


def test_3_bits_need_heads_of_a_multiple_of_16(tmp_path: Path) -> None:
    small, mamba = str(tiny_model(tmp_path)), str(tiny_model(tmp_path, "mamba2"))
    with pytest.raises(
        UsageError, match="int3: the model has heads of 8 numbers, no multiple of 16; use int4"
    ):
        prepare(small, EngineOptions(kv_cache_dtype="int3"))
    with pytest.raises(UsageError, match=r"int3: the model keeps recurrent states.* use auto, bf16 or f32"):
        prepare(mamba, EngineOptions(kv_cache_dtype="int3"))
    mixed = KvLayers(bits=((4, 4), (3, 4), (8, 8)))
    with pytest.raises(UsageError, match=r"mixed: the model has heads of 8 numbers.* use int4"):
        prepare(small, EngineOptions(kv_cache_dtype="mixed"), kv=mixed)
    fits = KvLayers(bits=((4, 4), (8, 4), (8, 8)))
    prepare(small, EngineOptions(kv_cache_dtype="mixed"), kv=fits).checkpoint.close()


def test_codes_need_the_native_backend_and_are_nothing_to_encoders_and_drafts() -> None:
    with pytest.raises(UsageError, match="backend numpy has only floats"):
        prepare("novelette", EngineOptions(kv_cache_dtype="int4", backend="numpy"))
    encoder = prepare("embed", EngineOptions(kv_cache_dtype="int4"))
    encoder.checkpoint.close()
    assert encoder.plan.kv_type == "bf16"
    with prepare("mini", EngineOptions(kv_cache_dtype="int4", speculative_layers=2)) as model:
        assert model.draft is not None
        assert (model.plan.kv_type, model.draft.plan.kv_type) == ("int4", "bf16")


def test_of_a_mixture_the_experts_of_one_token_count_and_routers_stay_fine(tmp_path: Path) -> None:
    prepared = prepare(str(tiny_model(tmp_path, "mixtral")), EngineOptions(quantization="int8"))
    prepared.checkpoint.close()
    nbytes = {weight.name: predicted_bytes([weight]) for weight in prepared.wanted}
    experts = sum(size for name, size in nbytes.items() if "experts" in name)
    others = sum(nbytes.values()) - experts - nbytes["model.embed_tokens.weight"]
    assert prepared.plan.weight_bytes_per_token == others + experts * 2 // 8
    assert {w.format for w in prepared.wanted if w.name.endswith("moe.gate.weight")} == {"bf16"}
    assert {w.format for w in prepared.wanted if "experts" in w.name} == {"int8"}
