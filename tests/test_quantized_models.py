"""Whole models from quantized safetensors: against `transformers` on dequantized weights, and as served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from golden import CAPACITY, Chunk, make_step, relative_error, scattered_pages
from headrace import LLM, _native
from headrace.bench.quality.next_token_model import NextTokenModel
from headrace.errors import UnsupportedModel
from headrace.executors.executor import Executor
from headrace.executors.native import NativeExecutor
from headrace.executors.reference import ReferenceExecutor
from headrace.executors.torch_executor import TorchExecutor
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.ops.value import Array
from headrace.program.program import Program
from headrace.program.record import record
from headrace.program.reorder import reorder_inputs
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.packing.packed_weights import WeightSpec, format_of, load_packed
from quantized_files import CONFIG, SCHEMES, Tensors, write_model
from tiny import tiny_model

PROMPT = np.arange(3, 27, dtype=np.int32) * 5 % 128


def truth(plain: Tensors) -> Array:
    """Logits of `transformers` in float32, [24, V]."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).eval()
    model.load_state_dict({name: torch.tensor(array) for name, array in plain.items()})
    with torch.inference_mode():
        return model(torch.tensor(PROMPT[None].astype(np.int64))).logits[0].numpy()


def native(program: Program, parts: ProgramWeights, weights: dict[str, Array], choice: str) -> NativeExecutor:
    pool = _native.Pool(2)
    wanted = [
        WeightSpec(name, *(int(size) for size in value.shape), format_of(choice, parts.info(name).dtype))
        for name, value in program.weights.items()
        if len(value.shape) == 2
    ]
    matrices = load_packed(parts, wanted, pool, cache=None)
    return NativeExecutor(program, matrices, weights, CAPACITY, pool=pool, kv_type="f32", poison=True)


@pytest.mark.parametrize("name", SCHEMES)
def test_logits_equal_transformers(tmp_path: Path, name: str) -> None:
    expected = truth(write_model(tmp_path, SCHEMES[name]))
    with open_checkpoint(tmp_path) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        parts = ProgramWeights(checkpoint, program)
        program = reorder_inputs(program, parts.input_order)
        weights = {weight: parts.float32(weight) for weight in program.weights}
        executors: dict[str, tuple[Executor, float]] = {
            "reference": (ReferenceExecutor(program, weights, CAPACITY), 1e-4),
            "torch": (TorchExecutor(program, weights, CAPACITY, device="cpu"), 1e-4),
        }
        # Products round their inputs, these random models amplify it over their layers.
        for choice, tolerance in (("keep", 0.1), ("bf16", 0.05)):
            executors[choice] = native(program, parts, weights, choice), tolerance
    for executor, (runner, tolerance) in executors.items():
        logits = runner.run(make_step(Chunk(PROMPT, 0, scattered_pages(0))))
        assert relative_error(logits, expected) <= tolerance, executor
    taken = [instruction.name for instruction in program.instructions].count("take_columns")
    # One for q, k and v, one each for o, for gate and up, for down, in each of two layers.
    assert taken == (8 if name.endswith("act_order") else 0)


@pytest.mark.parametrize(
    "name", ["gptq_act_order", "awq", "fp8_blocks", "ct_int8", "nvfp4", "ct_mxfp4", "rotated_4"]
)
def test_a_model_is_served(tmp_path: Path, name: str) -> None:
    """With the sequence's neighbors changing no bit."""
    folder = tmp_path / name
    write_model(folder, SCHEMES[name])
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model(tmp_path / file) / file, folder / file)
    prompts = ["abc", "the longer prompt of the two", "z"]
    for weights in ("keep", "bf16", "int8", "int4"):
        with LLM(folder, quantization=weights) as llm:
            alone = [llm.generate(prompt, max_tokens=12, temperature=0.0).text for prompt in prompts]
            together = llm.generate_batch(prompts, max_tokens=12, temperature=0.0)
        assert [answer.text for answer in together] == alone, weights


def test_a_teacher_reads_its_inputs_in_order(tmp_path: Path) -> None:
    """`headrace distil` from GPTQ with `desc_act` learns what the model finds likely, not mixed columns."""
    plain = write_model(tmp_path / "stored", SCHEMES["gptq_act_order"])
    shutil.copytree(tmp_path / "stored", tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    for file in (tmp_path / "plain").glob("*.safetensors*"):
        file.unlink()
    whole = {name: np.ascontiguousarray(values) for name, values in plain.items()}
    save_file(whole, tmp_path / "plain" / "model.safetensors")
    logs = list[np.ndarray]()
    for name in ("stored", "plain"):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_model(tmp_path / f"{name}-{file}") / file, tmp_path / name / file)
        options = EngineOptions(threads=1, cache_dir=None, quantization="bf16")
        teacher = NextTokenModel(str(tmp_path / name), options, longest=len(PROMPT))
        logs.append(np.concatenate(list(teacher.log_probs(PROMPT, 0))))
    np.testing.assert_array_equal(logs[0], logs[1])


def test_an_order_that_no_product_can_follow_is_refused() -> None:
    program = record(find_model(dict(CONFIG)).define)
    order = np.arange(64, dtype=np.int32)[::-1]
    embed = "model.embed_tokens.weight"
    with pytest.raises(UnsupportedModel, match=f"{embed}.*'embed': only products"):
        reorder_inputs(program, lambda name: order if name == embed else None)
