"""Configs without their optional fields, and with other names of fields, against `transformers`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from golden import CAPACITY, FOLDER, NAMES, Chunk, make_step, relative_error, scattered_pages
from headrace.errors import CorruptFile, HeadraceError
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.program_weights import ProgramWeights
from headrace.models.config_classes import complete, config_classes
from headrace.models.registry import find_model
from headrace.ops.value import Array, Ints
from headrace.program.record import record
from headrace.program.verify import verify
from headrace.weights.checkpoint import open_checkpoint

SCRIPTS = Path(__file__).parents[2] / "scripts"
Config = dict[str, object]
# With defaults for these a model has millions of weights; tests of the numbers alone are below.
SIZES = {
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "moe_intermediate_size"),
    *("n_embd", "n_layer", "num_attention_heads", "n_head", "num_key_value_heads", "max_position_embeddings"),
    *("n_positions", "num_heads", "head_dim", "n_routed_experts", "num_local_experts", "num_experts"),
    *(
        "num_experts_per_tok",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ),
    *("n_groups", "state_size", "expand", "n_group", "topk_group", "layer_types", "no_rope_layers"),
}
KEPT = SIZES | {"architectures", "model_type", "dtype", "bos_token_id", "eos_token_id", "pad_token_id"}
CAUSAL = [name for name in NAMES if name not in ("llama2_bf16",)]


def script(name: str) -> Any:
    """A file of scripts/ as a module."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SCRIPTS))


def golden_config(name: str) -> Config:
    return json.loads((FOLDER / name / "config.json").read_text())


def without(config: Config, *fields: str) -> Config:
    return {name: value for name, value in config.items() if name not in fields}


def truth_of(folder: Path, config: Config) -> tuple[Ints, Array]:
    """Writes the folder with random weights; the prompt and the logits of `transformers`."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    goldens = script("make_goldens")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    read = transformers.AutoConfig.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(
        read, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(0)
    goldens.fill(model, generator)
    prompt = torch.randint(0, read.vocab_size, (24,), generator=generator)
    with torch.no_grad():
        logits = model(prompt[None], use_cache=False).logits[0]
    tensors = {
        name: tensor.contiguous() for name, tensor in goldens.stored_tensors(model, config["model_type"])
    }
    goldens.save_file(tensors, folder / "model.safetensors")
    return prompt.int().numpy(), logits.numpy()


def our_logits(folder: Path, prompt: Ints) -> Array:
    with open_checkpoint(folder) as checkpoint:
        program = verify(record(find_model(checkpoint.config).define))
        parts = ProgramWeights(checkpoint, program)
        weights = {name: parts.float32(name) for name in program.weights}
    executor = ReferenceExecutor(program, weights, CAPACITY)
    return executor.run(make_step(Chunk(prompt, 0, scattered_pages(0))))


def deletions(name: str) -> Iterator[tuple[str, ...]]:
    """All optional fields at once, then one at a time."""
    optional = [field for field in golden_config(name) if field not in KEPT]
    yield tuple(optional)
    for field in optional:
        yield (field,)


def check(folder: Path, config: Config) -> None:
    prompt, logits = truth_of(folder, config)
    try:
        error = relative_error(our_logits(folder, prompt), logits)
    except HeadraceError as refusal:
        pytest.fail(f"{config['model_type']}: {refusal.message}")
    assert error <= 1e-4, config


@pytest.mark.parametrize("name", CAUSAL)
def test_a_config_without_optional_fields(tmp_path: Path, name: str) -> None:
    for number, fields in enumerate(deletions(name)):
        check(tmp_path / str(number), without(golden_config(name), *fields))


@pytest.mark.soak
@pytest.mark.parametrize("name", CAUSAL)
def test_a_config_with_null_instead_of_one_field(tmp_path: Path, name: str) -> None:
    """What `transformers` refuses may be refused or read as the default."""
    for number, (field, *_) in enumerate(list(deletions(name))[1:]):
        try:
            prompt, logits = truth_of(tmp_path / str(number), golden_config(name) | {field: None})
        except Exception:
            continue
        try:
            found = our_logits(tmp_path / str(number), prompt)
        except HeadraceError as refusal:
            assert field in refusal.message, (name, field, refusal.message)
        else:
            assert relative_error(found, logits) <= 1e-4, (name, field)


LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.5, 2.5, 6.0, 14.0]}
# What the classes make of fields together: golden, and what is changed in its config.
VARIANTS: list[tuple[str, Config]] = [
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}),  # of all layers
    ("qwen3_moe", {"sliding_window": 8}),
    (
        "llama_linear",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 3e4}},
    ),  # the older name counts
    ("phi3_longrope", {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 300}}),
    ("phi3_partial", {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.75}}),
    ("gpt_neox", {"rope_theta": 5e5}),  # is called rotary_emb_base
    ("gpt_neox", {"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5}}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("smollm3_window", {"sliding_window": None}),
    ("qwen2_window", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    ("falcon", {"n_embed": 32, "num_kv_heads": 4}),
    ("mixtral", {"rope_parameters": {"rope_type": "default"}}),
]


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_fields_that_act_together(tmp_path: Path, name: str, changes: Config) -> None:
    check(tmp_path, golden_config(name) | changes)


@pytest.mark.parametrize("name", ["bert", "modernbert", "modernbert_biases"])
def test_an_encoder_without_optional_fields(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    goldens = script("make_goldens")
    full = json.loads((FOLDER / "encoders" / name / "config.json").read_text())
    optional = [field for field in full if field not in KEPT]
    for number, fields in enumerate([optional, *([field] for field in optional)]):
        folder = tmp_path / str(number)
        goldens.make_encoder(folder, without(full, *fields))
        truth = load_file(folder / "golden.safetensors")
        with open_checkpoint(folder) as checkpoint:
            program = verify(record(find_model(checkpoint.config, pooling="none").define))
            parts = ProgramWeights(checkpoint, program)
            weights = {name: parts.float32(name) for name in program.weights}
        step = replace(make_step(Chunk(truth["prompt"], 0, scattered_pages(0))), types=truth["types"])
        states = ReferenceExecutor(program, weights, CAPACITY).run(step)
        assert relative_error(states, truth["states"]) <= 1e-4, fields


def test_the_table_is_that_of_transformers() -> None:
    pytest.importorskip("transformers")
    text = script("make_config_table")
    file = files("headrace.models") / "config_classes.json"
    assert text.text_of(text.make_table()) == file.read_text(), "run scripts/make_config_table.py"


SIZE_NAMES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
    "context": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "intermediate": "intermediate_size",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
# What the absorbed form of latent attention makes of them, and what stands under another name.
DIFFERENT = {("deepseek_v3", "kv_heads"), ("deepseek_v3", "head_dim"), ("mamba2", "kv_heads")}
# Of a position table that begins after the padding token, as many positions can be used.
DIFFERENT |= {
    (name, "context") for name in ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")
}
# Encoders without an output; the class does not declare the field.
DIFFERENT |= {("nomic_bert", "tied"), ("t5", "tied")}


@pytest.mark.parametrize(
    "name", sorted(set(config_classes()) - {"gemma3", "deepseek_v2", "modernbert", "bert"})
)
def test_sizes_of_an_empty_config(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, ours = transformers.AutoConfig.for_model(name), find_model({"model_type": name}).config
    for field, named in SIZE_NAMES.items():
        found, expected = getattr(ours, field, None), getattr(theirs, named, None)
        if found is not None and expected is not None and (name, field) not in DIFFERENT:
            assert found == expected, (name, field)


def test_both_names_of_a_field() -> None:
    config = golden_config("qwen3_moe")
    count = config.pop("num_experts")
    for named in ("num_experts", "num_local_experts"):
        model: Any = find_model(config | {named: count}).config
        assert model.experts.count == count
    with pytest.raises(CorruptFile, match=r"'num_experts' = 12 and 'num_local_experts' = 4, .* two names"):
        find_model(config | {"num_experts": 12, "num_local_experts": 4})


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt2", "gemma3", "mamba2", "deepseek_v3"])
def test_completing_twice_changes_nothing(name: str) -> None:
    once = complete(golden_config(name))
    assert complete(once) == once
    assert complete({"model_type": "unknown"}) == {"model_type": "unknown"}


def test_null_means_what_the_class_says() -> None:
    """No window where a window may be null; the default where nothing may be."""
    config = golden_config("mistral_window")
    windows: Any = find_model(config | {"sliding_window": None}).config
    assert windows.windows == (0, 0)
    windows = find_model(without(config, "sliding_window")).config
    assert windows.windows == (4096, 4096)
    eps: Any = find_model(config | {"rms_norm_eps": None}).config
    assert eps.eps == 1e-6


def test_an_infinite_limit_of_steps_is_read() -> None:
    model: Any = find_model(without(golden_config("mamba2"), "time_step_limit")).config
    assert model.largest_dt == np.inf
