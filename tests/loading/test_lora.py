"""Adapters beside a model: equal to peft, the same bytes in any company, what cannot be read is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from golden import CAPACITY, Chunk, executor_for, make_step, relative_error, scattered_pages
from headrace import _native
from headrace.errors import CorruptFile, HeadraceError, UnsupportedModel
from headrace.executors.executor import Executor
from headrace.executors.native import NativeExecutor
from headrace.loading.adapters import FittedAdapter, adapter_fitter
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.loading.program_weights import ProgramWeights
from headrace.ops.value import Array
from headrace.program.step import Step
from headrace.weights.packing.packed_weights import WeightSpec, load_packed
from peft_adapters import peft_adapter, write_adapter
from tiny import tiny_model

OPTIONS = EngineOptions(max_num_seqs=2, max_batch_tokens=64)
PROMPT = np.arange(2, 22, dtype=np.int32)


def loaded(model: Path, adapters: list[Path], kind: str) -> tuple[Executor, list[FittedAdapter]]:
    """An executor with adapters in the slots 0, 1, ..."""
    with prepare(str(model), OPTIONS) as planned:
        executor = executor_for(kind, planned.program, ProgramWeights(planned.checkpoint, planned.program))
        fitted = [adapter_fitter(planned)(path) for path in adapters]
    for slot, adapter in enumerate(fitted):
        executor.set_adapter(slot, adapter.adapter)
    return executor, fitted


def with_adapters(step: Step, *slots: int) -> Step:
    return replace(step, adapters=np.array(slots, np.int32))


def logits(executor: Executor, slot: int) -> Array:
    step = make_step(Chunk(PROMPT, 0, scattered_pages(0)))
    return executor.run(with_adapters(step, slot)).copy()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all matrices": ("llama3", {}),
    "q and v": ("llama3", {"target_modules": ["q_proj", "v_proj"], "r": 3}),
    "rslora": ("llama2", {"use_rslora": True, "lora_alpha": 5}),
    "patterns": (
        "llama2",
        {
            "rank_pattern": {"^model.layers.0.mlp.up_proj": 7, "k_proj": 2},
            "alpha_pattern": {r"\d.*q_proj": 3},
        },
    ),
    "some layers": ("llama2", {"layers_to_transform": [1]}),
    "biases": ("qwen2", {}),
    "output": ("llama2", {"target_modules": ["lm_head", "v_proj"]}),
    "fused": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj", "o_proj"]}),
    "transposed": ("gpt2", {"target_modules": ["c_attn", "c_fc", "c_proj"], "fan_in_fan_out": True}),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of peft's own
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(tmp_path: Path, case: str) -> None:
    golden, fields = CASES[case]
    model = tiny_model(tmp_path, golden)
    expected = peft_adapter(tmp_path / "adapter", model, PROMPT, **fields)
    for kind in ("numpy", "native", "torch"):
        executor, _ = loaded(model, [tmp_path / "adapter"], kind)
        assert relative_error(logits(executor, 0), expected) <= 1e-4, kind
        assert relative_error(logits(executor, -1), expected) > 1e-2, kind


def quantized(model: Path, adapters: list[Path], weight_format: str, threads: int = 2) -> Executor:
    """A native executor with packed matrices, whose adapters are then bf16."""
    with prepare(str(model), OPTIONS) as planned:
        program, parts = planned.program, ProgramWeights(planned.checkpoint, planned.program)
        fitted = [adapter_fitter(planned)(path) for path in adapters]
        pool = _native.Pool(threads)
        shapes = {n: v.shape for n, v in program.weights.items()}
        wanted = [
            WeightSpec(n, int(s[0]), int(s[1]), weight_format) for n, s in shapes.items() if len(s) == 2
        ]
        matrices = load_packed(parts, tuple(wanted), pool, cache=None)
        vectors = {n: parts.float32(n) for n, s in shapes.items() if len(s) != 2}
    executor = NativeExecutor(program, matrices, vectors, CAPACITY, pool=pool, kv_type="f32", poison=True)
    for slot, adapter in enumerate(fitted):
        executor.set_adapter(slot, adapter.adapter)
    return executor


def gguf_adapter(path: Path, folder: Path, head_dim: int) -> Path:
    """A folder of PEFT as a GGUF adapter, as convert_lora_to_gguf.py of llama.cpp writes it."""
    gguf = pytest.importorskip("gguf")
    config = json.loads((folder / "adapter_config.json").read_text())
    names = {
        **{f"self_attn.{one}_proj": f"attn_{one if one != 'o' else 'output'}" for one in "qkvo"},
        **{f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
    }
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", config["lora_alpha"])
    for name, value in load_file(folder / "adapter_model.safetensors").items():
        _, _, _, _, layer, block, module, half, _ = name.split(".")
        if half == "lora_B" and module in ("q_proj", "k_proj"):  # rotated by neighbors
            heads = value.reshape(-1, 2, head_dim // 2, value.shape[1])
            value = np.ascontiguousarray(heads.swapaxes(1, 2).reshape(value.shape))
        writer.add_tensor(f"blk.{layer}.{names[f'{block}.{module}']}.weight.{half.lower()}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_adapter_is_the_same_as_its_folder(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama3")
    config = json.loads((model / "config.json").read_text())
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    folder = write_adapter(tmp_path / "adapter", model)
    file = gguf_adapter(tmp_path / "adapter.gguf", folder, head_dim)
    executor, (first, second) = loaded(model, [folder, file], "native")
    assert first.digest == second.digest
    assert logits(executor, 0).tobytes() == logits(executor, 1).tobytes()


@pytest.mark.parametrize(
    ("key", "value", "cause"),
    [("adapter.type", "other", "no LoRA adapter"), ("adapter.lora.more", "x", "adapter.lora.more")],
)
def test_other_gguf_files_are_refused(tmp_path: Path, key: str, value: str, cause: str) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "a.gguf"), "llama")
    writer.add_type("adapter")
    if key != "adapter.type":
        writer.add_string("adapter.type", "lora")
    writer.add_string(key, value)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert cause in refused(tiny_model(tmp_path, "llama3"), tmp_path / "a.gguf").message


@pytest.mark.parametrize("weight_format", ["bf16", "int8", "int4"])
def test_beside_packed_weights_it_is_near_the_definition(tmp_path: Path, weight_format: str) -> None:
    """An adapter in bf16 adds little to the error that the base's own rounding makes."""
    model = tiny_model(tmp_path, "llama3")
    adapter = write_adapter(tmp_path / "adapter", model, rank=5)
    oracle, _ = loaded(model, [adapter], "numpy")
    native = quantized(model, [adapter], weight_format)
    own = relative_error(logits(native, -1), logits(oracle, -1))
    assert relative_error(logits(native, 0), logits(oracle, 0)) <= 2 * own + 0.05
    assert relative_error(logits(native, 0), logits(oracle, -1)) > 2 * own + 0.1


@pytest.mark.parametrize("weight_format", ["f32", "int8", "int4"])
def test_a_row_has_the_same_bytes_in_any_company(tmp_path: Path, weight_format: str) -> None:
    model = tiny_model(tmp_path, "llama3")
    adapters = [
        write_adapter(tmp_path / f"a{i}", model, seed=i, rank=rank) for i, rank in enumerate((4, 7, 2))
    ]
    slots = [2, -1, 0]
    chunks = [Chunk(PROMPT[:n], 0, scattered_pages(i)) for i, n in enumerate((20, 9, 13))]
    together = quantized(model, adapters, weight_format)
    mixed = together.run(with_adapters(make_step(*chunks), *slots)).copy()
    start = 0
    for chunk, slot in zip(chunks, slots, strict=True):
        count = len(chunk.tokens)
        for threads in (1, 3):
            alone = quantized(model, adapters, weight_format, threads)
            assert (
                alone.run(with_adapters(make_step(chunk), slot)).tobytes()
                == mixed[start : start + count].tobytes()
            )
            # One token after the other: single rows go another way through the kernels.
            one_by_one = quantized(model, adapters, weight_format, threads)
            rows = [
                one_by_one.run(
                    with_adapters(make_step(Chunk(chunk.tokens[i : i + 1], i, chunk.pages)), slot)
                ).copy()
                for i in range(count)
            ]
            assert np.concatenate(rows).tobytes() == mixed[start : start + count].tobytes()
        start += count
    plain = quantized(model, [], weight_format)  # a row without an adapter is as if there were none
    assert plain.run(make_step(chunks[1])).tobytes() == mixed[20:29].tobytes()


def test_slots_are_emptied_and_used_again(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama3")
    adapters = [write_adapter(tmp_path / f"a{i}", model, seed=i) for i in range(2)]
    executor, fitted = loaded(model, adapters, "native")
    first, second = logits(executor, 0), logits(executor, 1)
    executor.set_adapter(0, None)
    with pytest.raises(ValueError, match="empty slot 0"):
        logits(executor, 0)
    with pytest.raises(ValueError, match="empty slot 7"):
        logits(executor, 7)
    assert logits(executor, 1).tobytes() == second.tobytes()
    executor.set_adapter(0, fitted[1].adapter)
    assert logits(executor, 0).tobytes() == second.tobytes()
    executor.set_adapter(1, fitted[0].adapter)
    assert logits(executor, 1).tobytes() == first.tobytes()
    assert fitted[0].digest != fitted[1].digest


def refused(model: Path, adapter: Path) -> HeadraceError:
    with prepare(str(model), OPTIONS) as planned, pytest.raises(HeadraceError) as caught:
        adapter_fitter(planned)(adapter)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, 'modules_to_save is \\["lm_head"\\]'),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"lora_bias": True}, "lora_bias"),
        ({"something_new": 3}, "something_new is 3"),
        ({"r": 8}, "the rank 4, adapter_config.json says 8"),
        ({"alpha_pattern": {"(a": 3}}, "alpha_pattern cannot be searched"),
        ({"alpha_pattern": {f"m{i}": 1 for i in range(300)}}, "at most 256 patterns"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"lora_alpha": 1e300}, "the scale 2.5e\\+299, which is no float32"),
    ],
)
def test_what_an_adapter_cannot_have_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], cause: str
) -> None:
    model = tiny_model(tmp_path, "llama3")
    error = refused(model, write_adapter(tmp_path / "adapter", model, **fields))
    assert re.search(cause, error.message), error.message


def test_hostile_patterns_take_no_time(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama3")
    pattern = "(" * 60 + "[a-z0-9_.]+" + ")+" * 60 + "!"
    adapter = write_adapter(tmp_path / "adapter", model, alpha_pattern={pattern: 3})
    with prepare(str(model), OPTIONS) as planned:
        adapter_fitter(planned)(adapter)  # it matches nothing


def test_tensors_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama3")
    at = "base_model.model.model.layers.0.self_attn.q_proj"
    half = np.zeros((4, 32), np.float32)
    cases: list[tuple[dict[str, np.ndarray | None], type[HeadraceError], str]] = [
        ({f"{at}.lora_B.weight": None}, CorruptFile, "only one of lora_A and lora_B"),
        ({f"{at}.lora_A.weight": half * np.nan}, CorruptFile, "not finite"),
        ({f"{at}.lora_A.weight": np.zeros((4, 16), np.float32)}, CorruptFile, "16 inputs"),
        ({f"{at}.lora_magnitude_vector": half[0]}, UnsupportedModel, "magnitude"),
        ({"base_model.model.lm_head.base_layer.weight": half}, UnsupportedModel, "save_embedding_layers"),
        (
            {f"base_model.model.x.lora_{h}.weight": half[:, :4] for h in "AB"},
            UnsupportedModel,
            "'x.weight', which is no linear layer",
        ),
        (
            {f"{at}.lora_{h}.weight": np.zeros((600, 600), np.float32) for h in "AB"},
            UnsupportedModel,
            "over 512",
        ),
    ]
    for i, (change, kind, cause) in enumerate(cases):
        adapter = write_adapter(tmp_path / f"a{i}", model)
        tensors = load_file(adapter / "adapter_model.safetensors")
        tensors |= {name: value for name, value in change.items() if value is not None}
        save_file(
            {n: v for n, v in tensors.items() if change.get(n, v) is not None},
            adapter / "adapter_model.safetensors",
        )
        error = refused(model, adapter)
        assert isinstance(error, kind), error
        assert cause in error.message


def test_pickles_and_links_outside_are_not_read(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, "llama3")
    adapter = write_adapter(tmp_path / "adapter", model)
    weights = adapter / "adapter_model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    (adapter / "adapter_model.bin").write_bytes(b"")
    assert "pickles are never read" in refused(model, adapter).message
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "is a link out of the model's folder" in refused(model, adapter).message
