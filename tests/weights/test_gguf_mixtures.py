"""DeepSeek and gpt-oss from GGUF, as converted since 2025: parts of matrices, MXFP4, predicting blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf_conversion import Config, Keys, convert, gguf, latent_keys
from safetensors.numpy import load_file, save_file

from golden import CAPACITY, FOLDER, Chunk, make_step, relative_error, scattered_pages
from headrace.engine.request import EngineRequest
from headrace.errors import CorruptFile, UnsupportedModel
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.export import Export
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.loading.program_weights import ProgramWeights
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.sampling.params import SamplingParams
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.checkpoint_reader import CheckpointReader
from tiny import Running


def logits_of(source: CheckpointReader, config: Config, prompt: np.ndarray) -> np.ndarray:
    program = verify(record(find_model(config).define))
    parts = ProgramWeights(source, program)
    executor = ReferenceExecutor(program, {name: parts.float32(name) for name in program.weights}, CAPACITY)
    return executor.run(make_step(Chunk(prompt, 0, scattered_pages(0))))


def test_deepseek_3_as_converted_since_2025(tmp_path: Path) -> None:
    """The parts of kv_b, and a block that predicts further tokens; as above with equal factors."""
    golden = FOLDER / "deepseek_v3"
    config = json.loads((golden / "config.json").read_text())
    scaling = config["rope_scaling"]
    config["rope_scaling"] = scaling | {"mscale": scaling["mscale_all_dim"]}
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    tensors = load_file(golden / "model.safetensors")
    last = {name.replace(".1.", ".2."): value for name, value in tensors.items() if ".layers.1." in name}
    save_file(tensors | last, folder / "model.safetensors")
    keys = latent_keys(config) | {"nextn_predict_layers": 1}
    convert(folder, "DEEPSEEK2", tmp_path / "deepseek.gguf", splits=True, more=keys)
    prompt = load_file(golden / "golden.safetensors")["prompt"]
    with open_checkpoint(tmp_path / "deepseek.gguf") as file, open_checkpoint(golden) as source:
        assert not any("kv_b_proj" in name or ".layers.2." in name for name in file.tensors)
        expected = logits_of(source, config, prompt)
        assert relative_error(logits_of(file, file.config, prompt), expected) <= 1e-5


@pytest.mark.parametrize("splits", [False, True])
def test_deepseek_2_lite(tmp_path: Path, splits: bool) -> None:
    path, golden = tmp_path / "deepseek.gguf", FOLDER / "deepseek_v2"
    config = json.loads((golden / "config.json").read_text())
    more = (latent_keys(config) if splits else {}) | {"expert_gating_func": 1, "expert_group_count": 1}
    convert(golden, "DEEPSEEK2", path, splits=splits, more=more)
    truth = load_file(golden / "golden.safetensors")
    with open_checkpoint(path) as file:
        assert file.config["model_type"] == "deepseek_v2"
        assert relative_error(logits_of(file, file.config, truth["prompt"]), truth["logits"]) <= 1e-4


def test_gpt_oss(tmp_path: Path) -> None:
    path, golden = tmp_path / "oss.gguf", FOLDER / "gpt_oss"
    convert(golden, "GPT_OSS", path, splits=True)
    truth = load_file(golden / "golden.safetensors")
    with open_checkpoint(path) as file:
        assert relative_error(logits_of(file, file.config, truth["prompt"]), truth["logits"]) <= 1e-4


def test_a_factor_of_yarn_that_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "oss.gguf"
    convert(FOLDER / "gpt_oss", "GPT_OSS", path, splits=True, more={"rope.scaling.yarn_attn_factor": 0.5})
    with pytest.raises(UnsupportedModel, match=r"yarn_attn_factor = 0.5"):
        open_checkpoint(path)


def test_more_predicting_blocks_than_blocks(tmp_path: Path) -> None:
    path = tmp_path / "deepseek.gguf"
    more = {"nextn_predict_layers": 2, "expert_gating_func": 1}
    convert(FOLDER / "deepseek_v2", "DEEPSEEK2", path, more=more)
    with pytest.raises(CorruptFile, match=r"nextn_predict_layers.* fewer than the 2 blocks"):
        open_checkpoint(path)


def test_predicting_blocks_without_end(tmp_path: Path) -> None:
    """What a header claims costs nothing."""
    path = tmp_path / "deepseek.gguf"
    more = {"block_count": 2**31 - 1, "nextn_predict_layers": 2**31 - 3, "expert_gating_func": 1}
    convert(FOLDER / "deepseek_v2", "DEEPSEEK2", path, more=more | {"expert_group_count": 1})
    with open_checkpoint(path) as file:
        assert file.config["num_hidden_layers"] == 2


def test_groups_of_deepseek_2_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deepseek.gguf"
    more = {"expert_gating_func": 1, "expert_group_count": 4}
    convert(FOLDER / "deepseek_v2", "DEEPSEEK2", path, more=more)
    with pytest.raises(UnsupportedModel, match=r"chooses experts by function 1 from 4 groups"):
        open_checkpoint(path)


def test_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    """Experts keep their blocks; the native executor says what NumPy says of the same numbers."""
    path = tmp_path / "oss.gguf"
    keys: Keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(chr(0x4E00 + number) for number in range(125))],
        "tokenizer.ggml.scores": [0.0] * 128,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    convert(FOLDER / "gpt_oss", "GPT_OSS", path, splits=True, tokenizer=keys, experts="MXFP4")
    with open_checkpoint(path) as file:
        name = "model.layers.1.mlp.experts.3.up_proj.weight"
        tensors = load_file(FOLDER / "gpt_oss" / "model.safetensors")
        stored = np.ascontiguousarray(tensors["model.layers.1.mlp.experts.gate_up_proj"][3].T[1::2])
        mxfp4 = gguf.GGMLQuantizationType.MXFP4
        values = gguf.quants.dequantize(gguf.quants.quantize(stored, mxfp4), mxfp4)
        assert file.row_dtype(name) == "MXFP4" and (file.float32(name) == values).all()
    prompt, params = tuple(range(2, 22)), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    tokens: list[list[int]] = []
    for options in ({"backend": "numpy"}, {"quantization": "keep"}):
        model = load_model(str(path), EngineOptions(max_num_seqs=2, max_batch_tokens=32, **options))
        outcome = Running(model.engine, EngineRequest(prompt=prompt, params=params)).finish()
        model.close()
        tokens.append(outcome.tokens[0])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["deepseek_v2", "gpt_oss"])
def test_forms_of_gguf_are_written_again(tmp_path: Path, name: str) -> None:
    """As GGUF, with the same numbers; a folder has no names for them."""
    source, out, golden = tmp_path / "source.gguf", tmp_path / "out.gguf", FOLDER / name
    config = json.loads((golden / "config.json").read_text())
    kind, more, experts = "GPT_OSS", Keys(), "MXFP4"
    if name == "deepseek_v2":
        kind, experts = "DEEPSEEK2", "F32"
        more = latent_keys(config) | {"expert_gating_func": 1, "expert_group_count": 1}
    convert(golden, kind, source, splits=True, more=more, experts=experts)
    with open_checkpoint(source) as file:
        made = Export(checkpoint=file, path=source, name="tiny", type="f32", threads=2)
        made.to_gguf(out, lambda done, total: None)
        with pytest.raises(UnsupportedModel, match="in a form that no folder has"):
            made.to_folder(tmp_path / "folder", lambda done, total: None)
        with open_checkpoint(out) as again:
            assert again.tensors.keys() == file.tensors.keys()
            assert all((again.float32(tensor) == file.float32(tensor)).all() for tensor in file.tensors)
