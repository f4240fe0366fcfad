"""Checkpoints that say one thing and hold another: refused by name, or read as `transformers` reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from golden import CAPACITY, FOLDER, Chunk, make_step, relative_error, scattered_pages
from headrace.cli.main import build
from headrace.errors import CorruptFile, HeadraceError, UnsupportedModel
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.describe import describe
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.loading.program_weights import ProgramWeights
from headrace.ops.value import Array, Ints
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.head import read_head
from tiny import tiny_model

OPTIONS = EngineOptions(max_num_seqs=2, max_batch_tokens=64)
Tensors = dict[str, np.ndarray]


def changed(folder: Path, golden: str, more: Tensors | None = None, **fields: object) -> Path:
    """A golden as a model folder, with further tensors and other fields."""
    path = tiny_model(folder, golden)
    config = json.loads((path / "config.json").read_text()) | fields
    (path / "config.json").write_text(json.dumps(config))
    if more:
        save_file(load_file(path / "model.safetensors") | more, path / "model.safetensors")
    return path


def plan(path: Path, options: EngineOptions = OPTIONS) -> None:
    prepare(str(path), options).close()


def row(size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=size).astype(np.float32)


def test_biases_that_the_config_does_not_say_are_refused(tmp_path: Path) -> None:
    more = {f"model.layers.{i}.self_attn.{name}_proj.bias": row(32) for i in range(2) for name in "qo"}
    path = changed(tmp_path, "llama2", more)
    wanted = (
        r"4 tensors that a llama .* 'model.layers.0.self_attn.o_proj.bias', .* and 1 more.*attention_bias"
    )
    for read in (plan, lambda path: describe(str(path), OPTIONS)):
        with pytest.raises(UnsupportedModel, match=wanted):
            read(path)
    plan(changed(tmp_path / "biased", "llama_bias"))
    plan(changed(tmp_path / "zeros", "llama2", {name: 0 * value for name, value in more.items()}))


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_norm.weight", "score.weight", "model.extra"])
def test_tensors_without_a_place_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"1 tensors .* '{name}'"):
        plan(changed(tmp_path, "llama2", {name: row(32)}))


@pytest.mark.parametrize(
    ("golden", "names"),
    [
        ("llama2", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.k_scale"]),
        ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
        (
            "gpt_neox",
            [f"gpt_neox.layers.0.attention.{n}" for n in ("bias", "masked_bias", "rotary_emb.inv_freq")],
        ),
    ],
)
def test_constants_of_old_files_are_left_out(tmp_path: Path, golden: str, names: list[str]) -> None:
    plan(changed(tmp_path, golden, dict.fromkeys(names, row(8))))


def test_heads_of_an_encoders_training_are_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"bert.pooler.dense.weight": row(32), "cls.predictions.bias": row(128)}
    folder = changed(tmp_path, "encoders/bert", more, architectures=["BertForMaskedLM"])
    plan(folder)
    assert "without a head that its files hold (cls.predictions): it gives vectors" in caplog.text
    assert describe(str(folder), OPTIONS).unused == ("cls.predictions", "pooler")
    shown = CliRunner().invoke(build(["show"]), ["show", str(folder)]).output
    assert "cls.predictions, pooler" in shown


def test_a_classifier_beside_a_base_model_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"classifier.weight": np.ones((1, 32), np.float32), "classifier.bias": row(1)}
    both = ["NewModel", "NewForTokenClassification"]  # as gte-multilingual-base
    folder = changed(tmp_path, "encoders/gte_ntk", more, architectures=both)
    plan(folder)
    assert read_head(folder) is None and "(classifier)" in caplog.text
    with pytest.raises(UnsupportedModel, match=r"2 tensors that a new .* 'classifier.bias'"):
        plan(changed(tmp_path / "alone", "encoders/gte_ntk", more, architectures=["NewModel"]))


def test_a_pooler_alone_needs_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan(changed(tmp_path, "encoders/bert", {"bert.pooler.dense.weight": row(32)}))
    assert not caplog.records


def test_adapters_of_tasks_are_named_in_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = load_file(FOLDER / "encoders/jina_v3/model.safetensors")
    adapted = {
        re.sub(r"(Wqkv|word_embeddings)\.weight$", r"\1.parametrizations.weight.original", name): tensor
        for name, tensor in weights.items()
    }
    at = "encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_"
    adapted |= {f"{at}A": np.ones((5, 4, 32), np.float32), f"{at}B": np.ones((5, 96, 4), np.float32)}
    folder = changed(tmp_path, "encoders/jina_v3", lora_adaptations=["retrieval.query"])
    save_file(adapted, folder / "model.safetensors")
    plan(folder)
    assert "without its adapters of tasks" in caplog.text
    assert describe(str(folder), OPTIONS).unused == ("adapters of tasks",)


def test_fewer_layers_than_the_file_holds(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"there are 1 layers \(num_hidden_layers\), .* holds 2: correct"):
        plan(changed(tmp_path, "llama2", num_hidden_layers=1))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    more = {"model.layers.2.eh_proj.weight": row(32), "model.layers.2.self_attn.o_proj.weight": row(32)}
    plan(changed(tmp_path, "deepseek_v3", more, num_nextn_predict_layers=1))
    plan(changed(tmp_path / "many", "deepseek_v3", more, num_nextn_predict_layers=2**40))
    with pytest.raises(CorruptFile, match=r"there are 2 layers .* holds 3"):
        plan(changed(tmp_path / "none", "deepseek_v3", more, num_nextn_predict_layers=0))


@pytest.mark.parametrize(
    ("golden", "name"),
    [
        ("llama2", "LlamaForRewardModel"),
        ("gpt2", "GPT2DoubleHeadsModel"),
        ("llama2", "LlamaForMaskedLM"),
        ("encoders/bert", "BertForMultipleChoice"),
        ("encoders/bert", "BertForQuestionAnswering"),
    ],
)
def test_heads_of_other_tasks_are_refused(tmp_path: Path, golden: str, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"architectures is '{name}', .* another task") as caught:
        plan(changed(tmp_path, golden, architectures=[name]))
    assert ("ForSequenceClassification" in str(caught.value)) == golden.startswith("encoders")


@pytest.mark.parametrize(
    ("golden", "names"),
    [
        ("llama2", ["LlamaModel"]),
        ("llama2", ["LLaMAForCausalLM"]),
        ("llama2", []),
        ("llama2", None),
        ("gpt2", ["GPT2LMHeadModel"]),
        ("encoders/bert", ["BertModel"]),
        ("encoders/bert", ["BertForPreTraining"]),
        ("encoders/qwen3_last", ["Qwen3ForCausalLM"]),
    ],
)
def test_base_models_and_generators_are_read(tmp_path: Path, golden: str, names: object) -> None:
    options = OPTIONS
    if golden.endswith("_last"):
        options = EngineOptions(max_num_seqs=2, max_batch_tokens=64, pooling="last")
    plan(changed(tmp_path, golden, architectures=names), options)


def logits_of(path: Path, prompt: Ints) -> Array:
    with prepare(str(path), OPTIONS) as planned:
        parts = ProgramWeights(planned.checkpoint, planned.program)
        weights = {name: parts.float32(name) for name in planned.program.weights}
    return ReferenceExecutor(planned.program, weights, CAPACITY).run(
        make_step(Chunk(prompt, 0, scattered_pages(0)))
    )


@pytest.mark.parametrize(
    ("golden", "output", "table"),
    [
        ("llama3_tied", "lm_head.weight", "model.embed_tokens.weight"),
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("mamba2_groups", "lm_head.weight", "backbone.embeddings.weight"),
    ],
)
def test_a_stored_output_matrix_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, golden: str, output: str, table: str
) -> None:
    """Another one than the token table's is used, its copy is not."""
    truth = load_file(FOLDER / golden / "golden.safetensors")
    tensors = load_file(FOLDER / golden / "model.safetensors")
    path = changed(tmp_path / "copy", golden, {output: tensors[table]})
    assert relative_error(logits_of(path, truth["prompt"]), truth["logits"]) <= 1e-4
    assert "the stored one is used" not in caplog.text
    path = changed(tmp_path / "other", golden, {output: tensors[table][::-1].copy()})
    assert relative_error(logits_of(path, truth["prompt"]), truth["logits"][:, ::-1]) <= 1e-4
    assert f"{output}: the stored one is used" in caplog.text


def test_transformers_uses_the_stored_output_too(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tensors = load_file(FOLDER / "llama3_tied" / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    path = changed(tmp_path, "llama3_tied", {"lm_head.weight": table[::-1].copy()})
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    prompt = np.arange(24, dtype=np.int32)
    with torch.no_grad():
        logits = model(torch.from_numpy(prompt.astype(np.int64))[None]).logits[0].numpy()
    assert relative_error(logits_of(path, prompt), logits) <= 1e-4


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "some/base", "r": 8}
    path = changed(tmp_path, "llama2")
    (path / "adapter_config.json").write_text(json.dumps(adapter))
    for removed in ("model.safetensors", "config.json"):
        with pytest.raises(UnsupportedModel, match=r"an adapter of 'some/base', .* merge it"):
            open_checkpoint(path)
        (path / removed).unlink()


NONSENSE: dict[str, Any] = {
    "rope_scaling": "linear",
    "rope_parameters": ["yarn"],
    "rms_norm_eps": -1e-5,
    "num_attention_heads": 0,
    "num_key_value_heads": -2,
    "tie_word_embeddings": "😀",
    "attention_bias": "😀",
    "mlp_bias": 1,
    "hidden_act": ["silu"],
    "hidden_size": "32",
    "num_hidden_layers": True,
    "head_dim": 7.5,
    "vocab_size": -1,
    "architectures": "LlamaForCausalLM",
    "max_position_embeddings": None,
}


@pytest.mark.parametrize("field", NONSENSE)
def test_nonsense_is_named(tmp_path: Path, field: str) -> None:
    value = NONSENSE[field]
    if value is None:  # stands for the default: 2048
        plan(changed(tmp_path, "llama2", **{field: value}))
        return
    with pytest.raises(HeadraceError) as error:
        plan(changed(tmp_path, "llama2", **{field: value}))
    shown = "'LlamaForCausalLM'" if field == "architectures" else repr(value)
    assert f"'{field}' = {shown}" in error.value.message


def test_rotations_by_kind_of_layer_are_refused_where_there_are_no_kinds(tmp_path: Path) -> None:
    nested = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    with pytest.raises(UnsupportedModel, match=r"by kind of layer \(full_attention\)"):
        plan(changed(tmp_path, "llama2", rope_parameters=nested))


def test_rotated_weights_are_refused(tmp_path: Path) -> None:
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "transform_config": {"config_groups": {"u": {"type": "hadamard"}}},
    }
    with pytest.raises(UnsupportedModel, match=r"transform_config: .* quantized without transforms"):
        open_checkpoint(changed(tmp_path, "llama2", quantization_config=quantization))


def test_absent_sizes_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = changed(tmp_path, "llama2")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "hidden_size"}))
    with pytest.raises(CorruptFile, match=r"has shape .* config.json implies .*4096"):
        plan(path)
    assert "llama2 has no hidden_size in its config" in caplog.text
    caplog.clear()
    plan(changed(tmp_path, "gpt2"))
    assert "in its config" not in caplog.text
