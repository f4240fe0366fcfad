"""`headrace prune` on the shipped model: what it writes, says and refuses; the pruned model as a draft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from invocation import Outcome

from headrace import LLM
from headrace.weights.checkpoint import open_checkpoint
from tiny import tiny_model

QUICK = ("--windows", "4")
PROMPTS = ("extract a gzipped tar archive", "list the largest files here", "Once upon a time")


def test_a_pruned_model_drafts_for_the_original(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    out = tmp_path / "small"
    outcome = inside("prune", "mini", str(out), "--drop-layers", "25%", "--ffn", "0.75", *QUICK, "--json")
    assert outcome.code == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    assert said["layers"]["before"] == 6 and len(said["layers"]["dropped"]) == 1
    assert (said["ffn"]["before"], said["ffn"]["after"]) == (1024, 768)
    assert said["parameters"] < said["parameters_before"] and "fewer weights" in said["speed"]
    assert said["quality"]["kl"]["mean"] > 0
    record = json.loads((out / "headrace.json").read_text())
    assert record["made"]["ffn"] == "768 of 1024 in each layer"
    assert record["quality"][0]["kl"]["mean"] == said["quality"]["kl"]["mean"]
    assert "KL mean" in (out / "README.md").read_text()
    with LLM("mini", speculative="off", cache_dir=None) as plain:
        expected = [plain.generate(text, max_tokens=40, temperature=0).text for text in PROMPTS]
    with LLM("mini", speculative_model=str(out), cache_dir=None) as llm:
        assert [llm.generate(text, max_tokens=40, temperature=0).text for text in PROMPTS] == expected
        assert llm.model.engine.status().drafted > 0


@pytest.mark.nightly
def test_zeros_change_no_speed(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    out = tmp_path / "sparse"
    flags = ("--sparsity", "0.5", "--pattern", "2:4", "--method", "wanda")
    outcome = inside("prune", "mini", str(out), *flags, *QUICK)
    assert outcome.code == 0, outcome.stderr
    assert "the speed, the memory and the size of the files do not change" in outcome.stderr
    assert "do not change" in (out / "README.md").read_text()
    with open_checkpoint(out) as written:
        for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.5.self_attn.o_proj.weight"):
            assert ((written.float32(name).reshape(-1, 4) == 0).sum(axis=1) == 2).all()


def test_zeros_that_are_not_stored(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    model, out = str(tiny_model(tmp_path, "llama2")), tmp_path / "sparse"
    flags = ("--sparsity", "0.5", "--pattern", "2:4", "--format", "sparse-24-bitmask", "--windows", "2")
    outcome = inside("prune", model, str(out), *flags, "--json")
    assert outcome.code == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    assert said["storage"]["format"] == "sparse-24-bitmask"
    assert said["storage"]["bytes"] < said["storage"]["bytes_dense"]
    assert "the speed and the memory do not change" in said["speed"]
    assert "sparse-24-bitmask" in (out / "README.md").read_text()
    assert inside("run", str(out), "a", "--max-tokens", "2").code == 0
    healed = inside("prune", model, str(tmp_path / "x"), *flags, "--heal", str(out / "README.md"))
    assert healed.code == 2 and "--heal fills zeros" in healed.stderr


def test_the_gate_writes_nothing(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    flags = ("--drop-layers", "3", "--max-kl", "0.01", *QUICK)
    outcome = inside("prune", "mini", str(tmp_path / "out"), *flags)
    assert outcome.code == 1 and "at most 0.01 are allowed" in outcome.stderr
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []


@pytest.mark.parametrize("there", ["nothing of a model", "a project", "a model of others"])
def test_force_replaces_only_what_headrace_made(
    inside: Callable[..., Outcome], tmp_path: Path, there: str
) -> None:
    """A home with a config.json is no model."""
    out = tmp_path / "precious"
    out.mkdir()
    (out / ("notes.txt" if there == "nothing of a model" else "config.json")).write_text("{}")
    if there == "a project":
        (out / "headrace.json").write_text("{}")
        (out / "src").mkdir()
        (out / "src" / "thesis.tex").write_text("years of work")
    before = sorted(out.rglob("*"))
    for command in (("prune", "--drop-layers", "1"), ("quantize", "--quantization", "int8")):
        outcome = inside(command[0], "mini", str(out), *command[1:], "--force")
        assert outcome.code == 2 and "replaces only models that headrace wrote" in outcome.stderr
        assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize("name", ["notes.txt", "data/labels.json"])
def test_force_keeps_files_that_headrace_did_not_write(
    inside: Callable[..., Outcome], tmp_path: Path, name: str
) -> None:
    """Also where their names could be those of a model's files."""
    out = tmp_path / "out"
    command = ("quantize", str(tiny_model(tmp_path, "llama2")), str(out), "--to", "int8", "--force")
    assert inside(*command).code == 0
    assert inside(*command).code == 0, "what headrace wrote is replaced"
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("precious")
    outcome = inside(*command)
    assert outcome.code == 2 and f"{name} is in it" in outcome.stderr
    assert (out / name).read_text() == "precious"


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("mini", [], "nothing is to be pruned"),
        ("mini", ["--drop-layers", "200%"], "at least one must go and one must stay"),
        ("mini", ["--heads", "5"], "6 query heads over 2 heads of keys"),
        ("mini", ["--experts", "2"], "is no mixture of experts"),
        ("mini", ["--sparsity", "0.5", "--pattern", "x"], "give kept:group"),
        ("mini", ["--ffn", "0.5", "--method", "wanda"], "give --sparsity too"),
        ("mini", ["--ffn", "0.5", "--hours", "3"], "give --heal too"),
        ("mini", ["--ffn", "0.5", "--calibrate", "/nowhere/x.txt"], "/nowhere/x.txt cannot be read"),
        ("embed", ["--drop-layers", "1"], "embed"),
    ],
)
def test_what_cannot_be_is_refused(
    inside: Callable[..., Outcome], tmp_path: Path, model: str, flags: list[str], message: str
) -> None:
    outcome = inside("prune", model, str(tmp_path / "out"), *flags, *QUICK)
    assert outcome.code in (1, 2) and message in outcome.stderr
    assert [file.name for file in tmp_path.iterdir() if file.name != "cache"] == []
