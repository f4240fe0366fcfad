"""Checkpoints whose files have other names: text models inside models for images, and what `transformers` 5
saves in the form that it has in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from golden import CAPACITY, FOLDER, Chunk, make_step, relative_error, scattered_pages
from headrace.errors import CorruptFile
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.ops.value import Array, Ints
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf.families import by_model_type
from headrace.weights.gguf.tensor_names import named_tensors
from headrace.weights.safetensors.plain_names import plain_tensors
from headrace.weights.tensor_file import TensorInfo
from tiny import tiny_model


def logits_of(path: Path, prompt: Ints) -> Array:
    with open_checkpoint(path) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        parts = ProgramWeights(checkpoint, program)
        weights = {name: parts.float32(name) for name in program.weights}
    return ReferenceExecutor(program, weights, CAPACITY).run(make_step(Chunk(prompt, 0, scattered_pages(0))))


def check(path: Path, golden: str) -> None:
    truth = load_file(FOLDER / golden / "golden.safetensors")
    assert relative_error(logits_of(path, truth["prompt"]), truth["logits"]) <= 1e-4


def written(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


# How versions 4.50, 4.52 and 5 name them, and the base model without the output.
WRAPPERS = {
    "old": ("language_model.model.", "vision_tower.vision_model.x"),
    "new": ("model.language_model.", "model.vision_tower.x"),
    "base": ("language_model.", "multi_modal_projector.x"),
}


@pytest.mark.parametrize("names", WRAPPERS)
@pytest.mark.parametrize("golden", ["gemma3", "gemma3_nested"])
def test_the_text_model_of_a_model_for_images(tmp_path: Path, golden: str, names: str) -> None:
    prefix, image = WRAPPERS[names]
    tensors = load_file(FOLDER / golden / "model.safetensors")
    tensors = {f"{prefix}{name.removeprefix('model.')}": value for name, value in tensors.items()}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": json.loads((FOLDER / golden / "config.json").read_text()),
        "vision_config": {"hidden_size": 8},
    }
    path = tiny_model(tmp_path, golden)
    check(written(path, config, tensors | {image: np.zeros(3, np.float32)}), golden)
    prepare(str(path), EngineOptions(max_num_seqs=2, max_batch_tokens=16)).close()


def test_an_untied_output_of_a_wrapper(tmp_path: Path) -> None:
    tensors = load_file(FOLDER / "gemma3" / "model.safetensors")
    tensors = {f"language_model.{name}": value for name, value in tensors.items()}
    tensors["language_model.lm_head.weight"] = tensors["language_model.model.embed_tokens.weight"].copy()
    text = json.loads((FOLDER / "gemma3" / "config.json").read_text())
    config = {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False}
    check(written(tmp_path, config, tensors), "gemma3")


def test_a_text_config_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="'text_config' = 7, which must be an object"):
        open_checkpoint(written(tmp_path, {"model_type": "gemma3", "text_config": 7}, {}))


def stacked(tensors: dict[str, np.ndarray], names: tuple[str, str, str]) -> dict[str, np.ndarray]:
    """All experts of a layer as `transformers` 5 has them: gate and up rows below one another."""
    found = {name: value for name, value in tensors.items() if ".experts." not in name}
    for at in {name.partition(".experts.")[0] for name in tensors if ".experts." in name}:
        count = 1 + max(int(name.split(".")[5]) for name in tensors if name.startswith(f"{at}.experts."))
        gate, up, down = (
            np.stack([tensors[f"{at}.experts.{e}.{name}.weight"] for e in range(count)]) for name in names
        )
        found[f"{at}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        found[f"{at}.experts.down_proj"] = down
    return {name.replace("block_sparse_moe", "mlp"): value for name, value in found.items()}


@pytest.mark.parametrize("golden", ["mixtral", "qwen3_moe", "qwen3_moe_mixed", "deepseek_v2", "deepseek_v3"])
def test_experts_in_the_form_of_memory(tmp_path: Path, golden: str) -> None:
    names = ("w1", "w3", "w2") if golden == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    config = json.loads((FOLDER / golden / "config.json").read_text())
    check(written(tmp_path, config, stacked(load_file(FOLDER / golden / "model.safetensors"), names)), golden)


def test_the_output_of_gpt_neox_in_the_form_of_memory(tmp_path: Path) -> None:
    tensors = load_file(FOLDER / "gpt_neox" / "model.safetensors")
    config = json.loads((FOLDER / "gpt_neox" / "config.json").read_text())
    tensors = {name.replace("embed_out", "lm_head"): value for name, value in tensors.items()}
    check(written(tmp_path, config, tensors), "gpt_neox")


def test_norms_of_the_first_bert_checkpoints(tmp_path: Path) -> None:
    tensors = load_file(FOLDER / "encoders" / "bert" / "model.safetensors")
    config = json.loads((FOLDER / "encoders" / "bert" / "config.json").read_text())
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    with open_checkpoint(written(tmp_path, config, old)) as checkpoint:
        assert checkpoint.tensors.keys() == tensors.keys()
        for name in tensors:
            assert (checkpoint.float32(name) == tensors[name]).all()


@pytest.mark.parametrize("original", [True, False])
def test_a_wrapper_that_transformers_saved(tmp_path: Path, original: bool) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    text = json.loads((FOLDER / "gemma3" / "config.json").read_text()) | {"vocab_size": 160}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        image_token_index=150,
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path, save_original_format=original)
    prompt = np.arange(3, 27, dtype=np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0].numpy()
    assert relative_error(logits_of(tmp_path, prompt), logits) <= 1e-4


def test_stacks_without_end_are_not_taken_apart() -> None:
    """Names of a hostile file cost no more than its header."""
    info = TensorInfo("x", "U8", (1 << 30, 2, 1), 2 << 30, Path("x"), 0)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert plain_tensors({name: info}, "qwen3_moe") == {name: info}
    with pytest.raises(CorruptFile, match=r"at most 4,096 experts or heads"):
        list(named_tensors(replace(info, name="blk.0.ffn_up_exps.weight"), by_model_type("qwen3_moe"), "x"))
