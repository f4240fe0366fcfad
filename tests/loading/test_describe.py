"""What `headrace show` says: of folders, of GGUF files, of mixtures of experts, of what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.loading import memory_plan as plan
from headrace.loading.describe import ModelFacts, describe
from headrace.loading.export import Export
from headrace.loading.options import EngineOptions
from headrace.weights.checkpoint import open_checkpoint
from tiny import convertible_model, tiny_model


def facts_of(path: Path, **options: object) -> ModelFacts:
    return describe(str(path), EngineOptions(cache_dir=path.parent / "cache", **options))  # type: ignore[arg-type]


def test_a_folder(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama2")
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Tiny\n")
    facts = facts_of(folder)
    assert facts.license == "cc0-1.0" and facts.chat_template and not facts.reads_tools
    assert facts.parameters == facts.active_parameters == sum(entry.parameters for entry in facts.stored)
    assert {entry.kind for entry in facts.stored} == {
        "attention", "mlp", "norms, biases", "output", "token table",
    }  # fmt: skip
    assert facts.tokenizer.startswith("BPE, ") and facts.runs_in == ("f32",)
    assert facts.speed is not None and facts.speed.arithmetic == "f32"
    assert facts_of(folder, quantization="int4").speed.arithmetic == "int8"  # type: ignore[union-attr]


def test_a_gguf_file(tmp_path: Path) -> None:
    folder = convertible_model(tmp_path)
    (folder / "LICENSE").write_text("MIT License\n\nPermission is hereby granted")
    with open_checkpoint(folder) as checkpoint:
        export = Export(checkpoint=checkpoint, path=folder, name="tiny", type="q8_0", threads=1)
        export.to_gguf(tmp_path / "tiny.gguf", lambda done, total: None)
    facts = facts_of(tmp_path / "tiny.gguf")
    assert facts.license == "mit" and facts.chat_template and facts.architecture == "llama"
    assert ("attention", "Q8_0") in {(entry.kind, entry.type) for entry in facts.stored}


def test_experts_that_are_not_chosen_do_not_count(tmp_path: Path) -> None:
    facts = facts_of(tiny_model(tmp_path, "mixtral"))
    [experts] = (entry for entry in facts.stored if entry.kind == "experts")
    assert facts.parameters - facts.active_parameters == experts.parameters * 6 // 8
    assert any(entry.kind == "router" for entry in facts.stored)


def test_what_does_not_fit_is_still_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_memory_bytes", lambda: 1000)
    facts = facts_of(tiny_model(tmp_path, "llama2"))
    assert facts.plan is None and facts.speed is None
    assert facts.plan_problem is not None and "the model needs" in facts.plan_problem
    assert facts.parameters > 1000
