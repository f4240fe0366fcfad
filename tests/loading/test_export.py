"""A model written as GGUF or as a folder: other readers see the same numbers, and it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from golden import CAPACITY, FOLDER, Chunk, make_step, relative_error, scattered_pages
from head_models import head_model
from headrace import LLM
from headrace.errors import UnsupportedModel
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.export import Export
from headrace.loading.program_weights import ProgramWeights
from headrace.models.config_classes import complete
from headrace.models.decoder_config import DecoderConfig
from headrace.models.registry import find_model
from headrace.ops.value import Array
from headrace.program.record import record
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.gguf.config_keys import config_of, metadata_of
from headrace.weights.gguf.export import FILE_TYPES
from headrace.weights.gguf.families import by_model_type
from headrace.weights.safetensors.reader import SafetensorsFile
from headrace.weights.tensor_output import ClassReport
from tiny import convertible_model

WRITABLE = [
    "llama2",
    "llama3",
    "llama3_tied",
    "llama_bias",
    "llama_linear",
    "mistral_window",
    "qwen2",
    "qwen3",
]
WRITABLE += ["qwen3_yarn", "granite", "smollm3_window", "olmo2", "phi3", "phi3_partial", "gemma2", "gemma3"]
WRITABLE += [
    "gemma3_nested",
    "starcoder2",
    "starcoder2_window",
    "gpt_neox",
    "gpt2",
    "falcon",
    "mixtral_window",
    "qwen3_moe",
    "mamba2",
    "phi3_longrope",
    "deepseek_v2",
]


def export(source: Path, out: Path, type: str) -> list[ClassReport]:
    with open_checkpoint(source) as checkpoint:
        made = Export(checkpoint=checkpoint, path=source, name="tiny", type=type, threads=2)
        return (made.to_gguf if out.suffix == ".gguf" else made.to_folder)(out, lambda done, total: None)


def logits(path: Path, prompt: Array) -> Array:
    with open_checkpoint(path) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        parts = ProgramWeights(checkpoint, program)
        weights = {name: parts.float32(name) for name in program.weights}
    return ReferenceExecutor(program, weights, CAPACITY).run(make_step(Chunk(prompt, 0, scattered_pages(0))))


@pytest.mark.parametrize("name", WRITABLE)
def test_a_folder_becomes_gguf_and_gives_its_logits(tmp_path: Path, name: str) -> None:
    folder, out = convertible_model(tmp_path, name), tmp_path / "tiny.gguf"
    export(folder, out, "f32")
    truth = load_file(FOLDER / name / "golden.safetensors")
    assert relative_error(logits(out, truth["prompt"]), truth["logits"]) <= 1e-4
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize("name", [name for name in WRITABLE if name not in ("llama3", "llama3_tied", "gpt2")])
def test_gguf_becomes_a_folder_that_gives_its_logits(tmp_path: Path, name: str) -> None:
    folder = convertible_model(tmp_path, name)
    export(folder, tmp_path / "tiny.gguf", "f32")
    export(tmp_path / "tiny.gguf", tmp_path / "back", "f32")
    truth = load_file(FOLDER / name / "golden.safetensors")
    assert relative_error(logits(tmp_path / "back", truth["prompt"]), truth["logits"]) <= 1e-4


@pytest.mark.parametrize("type", FILE_TYPES)
def test_gguf_reads_the_tensors_of_every_type(tmp_path: Path, type: str) -> None:
    gguf = pytest.importorskip("gguf")
    export(convertible_model(tmp_path, "llama2"), tmp_path / "tiny.gguf", type)
    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    with open_checkpoint(tmp_path / "tiny.gguf") as ours:
        by_name = {info.name: name for name, info in ours.tensors.items()}
        assert by_name.keys() == {tensor.name for tensor in reader.tensors}
        for tensor in reader.tensors:
            name = by_name[tensor.name]
            theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if (
                "attn_q" not in tensor.name and "attn_k" not in tensor.name
            ):  # whose rows are ordered otherwise
                assert (ours.float32(name) == theirs).all(), name
    assert reader.get_field("general.file_type").contents() == FILE_TYPES[type]


def test_the_report_says_what_does_not_fit(tmp_path: Path) -> None:
    """The golden's rows have 32 entries: too few for a block of Q4_K, enough for Q8_0."""
    lines = export(convertible_model(tmp_path, "llama2"), tmp_path / "tiny.gguf", "q4_k")
    found = {(line.kind, line.type): line for line in lines}
    assert ("attention", "Q8_0") in found and ("norms, biases", "F32") in found
    mlp = {kind for (name, kind) in found if name == "mlp"}
    assert mlp == {"Q8_0", "F16"}  # 80 inputs are no multiple of 32
    assert 0 < found["attention", "Q8_0"].loss <= found["attention", "Q8_0"].worst < 0.01
    assert found["norms, biases", "F32"].loss == 0
    size = (tmp_path / "tiny.gguf").stat().st_size
    assert sum(line.bytes_after for line in lines) < size < sum(line.bytes_after for line in lines) + 20_000


def test_a_model_of_stories_runs_from_what_was_written(tmp_path: Path, shared_data: Path) -> None:
    stories = shared_data / "stories260K"
    expected = (stories / "expected_greedy_200.txt").read_text()
    export(stories / "hf", tmp_path / "stories.gguf", "f32")
    export(tmp_path / "stories.gguf", tmp_path / "again.gguf", "f32")
    export(tmp_path / "stories.gguf", tmp_path / "folder", "f32")
    for made in ("stories.gguf", "again.gguf", "folder"):
        with LLM(tmp_path / made) as llm:
            assert llm.generate("", temperature=0.0, max_tokens=200).text == expected
    assert (tmp_path / "stories.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_template_and_tokens_come_along(tmp_path: Path) -> None:
    folder = convertible_model(tmp_path, "llama2")
    export(folder, tmp_path / "tiny.gguf", "q8_0")
    export(tmp_path / "tiny.gguf", tmp_path / "back", "bf16")
    messages = [{"role": "user", "content": "Hi there"}]
    texts = []
    for path in (folder, tmp_path / "back"):
        with LLM(path, quantization="bf16") as llm:
            texts.append(llm.chat(messages, temperature=0.0, max_tokens=5).text)
    with LLM(tmp_path / "tiny.gguf", quantization="bf16") as llm:
        assert llm.chat(messages, max_tokens=5).usage.prompt_tokens > 5
    assert texts[0] and len(texts) == 2


def unpacked(folder: Path, name: str, group: int, bits: int) -> np.ndarray:
    """A packed weight as the format's description reads."""
    with SafetensorsFile(folder / "model.safetensors") as file:
        packed, shape = (raw(file, f"{name}_{what}") for what in ("packed", "shape"))
        scale = file.float32(file.tensors[f"{name}_scale"])
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    n, k = shape.view("<i8")
    words = packed.view("<u4").reshape(n, -1, 1)
    codes = (words >> shifts & np.uint32((1 << bits) - 1)).astype(np.int64) - (1 << bits - 1)
    return (codes.reshape(n, -1, group) * scale[..., None]).reshape(n, k)


def raw(file: SafetensorsFile, name: str) -> np.ndarray:
    info = file.tensors[name]
    data = np.empty(info.nbytes, np.uint8)
    file.read_into(info, 0, data.data)
    return data


@pytest.mark.parametrize(("type", "bits", "most"), [("int8", 8, 0.01), ("w4a16", 4, 0.12)])
def test_integers_as_compressed_tensors(tmp_path: Path, type: str, bits: int, most: float) -> None:
    """The golden's rows are as short as the smallest group, 32 inputs."""
    folder = convertible_model(tmp_path, "llama2")
    lines = export(folder, tmp_path / "out", type)
    name = "model.layers.1.self_attn.q_proj.weight"
    with open_checkpoint(folder) as checkpoint:
        original = checkpoint.float32(name)
    found = unpacked(tmp_path / "out", name, 32, bits)
    loss = np.sqrt(np.square(found - original).sum() / np.square(original).sum())
    assert loss <= most
    assert loss <= next(
        line.worst for line in lines if line.type == type.upper() and line.kind == "attention"
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["format"] == "pack-quantized" and "lm_head" in config["ignore"]


@pytest.mark.parametrize("type", ["f32", "bf16", "int8", "w4a16"])
def test_transformers_reads_what_was_written(tmp_path: Path, type: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    if type in ("int8", "w4a16"):
        pytest.importorskip("compressed_tensors")
    export(convertible_model(tmp_path, "llama2"), tmp_path / "tiny.gguf", "f32")
    export(tmp_path / "tiny.gguf", tmp_path / "out", type)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    truth = load_file(FOLDER / "llama2" / "golden.safetensors")
    with torch.no_grad():
        found = model(torch.from_numpy(truth["prompt"]).long()[None]).logits[0].numpy()
    loss = np.sqrt(np.square(found - truth["logits"]).mean() / np.square(truth["logits"]).mean())
    assert loss <= {"f32": 1e-5, "bf16": 0.02, "int8": 0.05, "w4a16": 0.5}[type]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("ab").input_ids[-2:] == [66, 67]


def test_what_has_no_place_in_gguf_is_refused(tmp_path: Path) -> None:
    for name, message in (
        ("qwen2_window", "window"),
        ("smollm3", "rotate"),
        ("gpt_neox_serial", "activation"),
        ("qwen3_moe_mixed", "experts"),
        ("mamba2_groups", "time steps"),
        ("deepseek_v3", "mscale"),
        ("deepseek_v3_direct", "rotate"),
    ):
        folder = convertible_model(tmp_path, name)
        with pytest.raises(UnsupportedModel, match=message):
            export(folder, tmp_path / "out.gguf", "f16")
    export(convertible_model(tmp_path, "llama3"), tmp_path / "divided.gguf", "f16")
    with pytest.raises(UnsupportedModel, match="divisors"):
        export(tmp_path / "divided.gguf", tmp_path / "folder", "f16")
    assert not (tmp_path / "folder").exists() and not (tmp_path / "out.gguf").exists()
    assert not list(tmp_path.glob(".*partial"))


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    folder = convertible_model(tmp_path, "llama2")
    shutil.copytree(folder, tmp_path / "out")
    (tmp_path / "out" / "old.txt").write_text("old")
    export(folder, tmp_path / "out", "bf16")
    assert not (tmp_path / "out" / "old.txt").exists()


# Each field that decides what is computed, and with what it may be left out for its class's default.
OPTIONAL = {"rope_theta", "rope_scaling", "rope_parameters", "sliding_window", "rotary_pct"}
OPTIONAL |= {"rms_norm_eps", "layer_norm_eps", "norm_epsilon"}
OPTIONAL |= {"tie_word_embeddings", "max_position_embeddings"}


@pytest.mark.parametrize("name", [name for name in WRITABLE if name not in ("mamba2", "phi3_longrope")])
def test_defaults_of_absent_fields_are_written(name: str) -> None:
    with open_checkpoint(FOLDER / name) as checkpoint:
        tensors = checkpoint.tensors
        config = complete({key: value for key, value in checkpoint.config.items() if key not in OPTIONAL})
    model = find_model(config)
    architecture = by_model_type(model.model_type)
    read = config_of(metadata_of(config, architecture), architecture, tensors, "x.gguf")
    read["tie_word_embeddings"] = config["tie_word_embeddings"]  # in files: whether there is an output
    read["model_type"] = model.model_type
    ours, theirs = find_model(read).config, model.config
    assert isinstance(ours, DecoderConfig) and isinstance(theirs, DecoderConfig)
    for field in DecoderConfig.__struct_fields__:
        if field not in ("ropes", "transposed"):
            assert getattr(ours, field) == getattr(theirs, field), field
    for one, other in zip(ours.ropes, theirs.ropes, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            np.testing.assert_allclose(one.inv_freq, other.inv_freq, rtol=1e-6)


@pytest.mark.parametrize("name", ["bert_classify", "modernbert_tokens"])
def test_heads_are_written_to_folders_and_not_to_gguf(tmp_path: Path, name: str) -> None:
    source = head_model(tmp_path, f"heads/{name}")
    with open_checkpoint(source) as checkpoint:
        export = Export(checkpoint=checkpoint, path=source, name=name, type="bf16", threads=1)
        with pytest.raises(UnsupportedModel, match=r"has a head \((token_)?classify\), which a GGUF"):
            export.to_gguf(tmp_path / "x.gguf", lambda done, total: None)
        export.to_folder(tmp_path / "out", lambda done, total: None)
    with LLM(tmp_path / "out", cache_dir=None) as llm:
        assert llm.model.head is not None and llm.model.head.labels == ("low", "mid", "high")
