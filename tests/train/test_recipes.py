"""Every recipe end to end with tiny shapes and data: training, resuming, export, distillation, model card."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("recipes")


@pytest.mark.nightly
def test_mini_then_nano_then_their_cards(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _shrink(monkeypatch)
    mini = tmp_path / "out/mini"
    assert _run(monkeypatch, "mini", made_up_data, tmp_path / "work", mini, "--steps=3", "--decay=2") == 0
    config = json.loads((mini / "config.json").read_text())
    assert (config["model_type"], config["tie_word_embeddings"]) == ("llama", True)
    assert "step 5" in capsys.readouterr().out
    header, *rows = (tmp_path / "work/measures.csv").read_text().splitlines()
    assert header.startswith("step,loss,shell loss,shell exact")
    assert [row.split(",")[0] for row in rows] == ["2", "4"]
    assert (tmp_path / "work/measures.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "work/plateau.safetensors").is_file()

    nano = tmp_path / "out/nano"
    work = tmp_path / "work2"
    assert (
        _run(monkeypatch, "nano", made_up_data, work, nano, "--steps=2", "--decay=0", f"--teacher={mini}")
        == 0
    )
    assert len((work / "shell.jsonl").read_text().splitlines()) == 16
    assert (nano / "tokenizer.json").read_bytes() == (mini / "tokenizer.json").read_bytes()

    evaluate = importlib.import_module("evaluate")
    for more in (["--card=mini"], ["--card=nano", f"--draft={nano}"]):
        monkeypatch.setattr(sys, "argv", ["evaluate.py", f"--data={made_up_data}", f"--model={mini}", *more])
        assert evaluate.main() == 0
    assert "exact command | 0.0% of 18 |" in (mini / "README.md").read_text()
    assert "accepted of 4 drafted tokens per step |" in (nano / "README.md").read_text()


@pytest.mark.nightly
def test_a_resumed_run_equals_an_uninterrupted_one(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _shrink(monkeypatch)
    _run(monkeypatch, "mini", made_up_data, tmp_path / "a", tmp_path / "whole", "--steps=2", "--decay=2")
    _run(monkeypatch, "mini", made_up_data, tmp_path / "b", tmp_path / "half", "--steps=2", "--decay=0")
    _run(monkeypatch, "mini", made_up_data, tmp_path / "b", tmp_path / "resumed", "--steps=1", "--decay=2")
    whole, half, resumed = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "half", "resumed")
    )
    assert resumed == whole != half


@pytest.mark.nightly
def test_a_run_of_minutes_decays_by_itself_and_goes_on_from_its_checkpoint(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _shrink(monkeypatch)
    work, out = tmp_path / "work", tmp_path / "out"
    assert _run(monkeypatch, "mini", made_up_data, work, out, "--minutes=0.02") == 0
    first = capsys.readouterr().out
    assert (work / "plateau.safetensors").is_file()
    assert (out / "model.safetensors").is_file()
    weights = (out / "model.safetensors").read_bytes()
    assert _run(monkeypatch, "mini", made_up_data, work, out, "--minutes=0.02") == 0
    assert capsys.readouterr().out == first  # it had ended
    assert (out / "model.safetensors").read_bytes() == weights
    (work / "plateau.safetensors").replace(work / "checkpoint.safetensors")
    assert _run(monkeypatch, "mini", made_up_data, work, out, "--minutes=0.02") == 0
    assert (out / "model.safetensors").read_bytes() != b""


def test_prompt_files_are_readable_by_the_bench(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = importlib.import_module("prompts")
    flags = [f"--data={made_up_data}", f"--out={tmp_path / 'prompts'}", "--count=3"]
    monkeypatch.setattr(sys, "argv", ["prompts.py", *flags])
    assert prompts.main() == 0
    for job, part in (("command", ""), ("sql", "Table "), ("edit", "\n")):
        lines = (tmp_path / f"prompts/{job}.jsonl").read_text().splitlines()
        assert len(lines) == 3 and all(part in json.loads(line)["prompt"] for line in lines)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_batches_from_other_processes_are_the_same() -> None:
    torch = importlib.import_module("torch")
    batch = importlib.import_module("mixture").Batch

    def draw(key: tuple[int, int], windows: int, length: int) -> object:
        return batch(*(torch.full((windows, length), key[1] + part) for part in range(3)))

    keys = [(1, step) for step in range(11)]
    ahead = list(importlib.import_module("ahead").drawn_ahead(draw, [(key, 2, 3) for key in keys], 2))
    assert [int(one.tokens[0, 0]) for one in ahead] == list(range(11))
    assert [int(one.weights[1, 2]) for one in ahead] == list(range(2, 13))


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("text/tldr_pages_en.tar.xz", "tldr_pages_en.tar.xz is missing: pass --data"),
        ("sql/text2sql/wikisql.json.bz2", "wikisql.json.bz2 is missing: pass --data"),
        ("intents/clinc150/data_small.json.xz", "data_small.json.xz is missing: pass --data"),
    ],
)
def test_missing_data_is_named(
    gone: str,
    message: str,
    made_up_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (made_up_data / gone).unlink()
    assert _run(monkeypatch, "mini", made_up_data, tmp_path / "work", tmp_path / "out") == 1
    assert message in capsys.readouterr().err


def test_too_little_memory_is_an_error(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("recipe"), "MIN_MEMORY_GIB", 1e6)
    assert _run(monkeypatch, "mini", made_up_data, tmp_path / "work", tmp_path / "out") == 1
    assert "of memory are free, the recipe needs 1000000" in capsys.readouterr().err


def test_another_seed_needs_another_folder(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _shrink(monkeypatch)
    _run(monkeypatch, "mini", made_up_data, tmp_path / "work", tmp_path / "out", "--steps=1", "--decay=0")
    assert _run(monkeypatch, "mini", made_up_data, tmp_path / "work", tmp_path / "out", "--seed=2") == 1
    assert "holds a run of seed 1" in capsys.readouterr().err


def test_transformers_loads_the_folder_and_gives_the_same_tokens(
    made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs headrace[train]")
    import torch

    from headrace import LLM

    _shrink(monkeypatch)
    folder = tmp_path / "out"
    _run(monkeypatch, "mini", made_up_data, tmp_path / "work", folder, "--steps=2", "--decay=0")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    messages = [{"role": "user", "content": "remove a user of kind 3"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert prompt == "<s><|user|>remove a user of kind 3</s><|assistant|>"
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    theirs = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    with LLM(folder, backend="numpy", cache_dir=None) as llm:
        ours = llm.chat(messages, max_tokens=12)
    assert list(ours.tokens) == theirs
    decoder, _ = importlib.import_module("export").read_model(folder)
    with torch.no_grad():
        assert torch.allclose(decoder(ids), model(ids).logits, atol=1e-4)


def _shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny shapes, few examples, nothing compiled."""
    sources, mini, nano = (importlib.import_module(name) for name in ("sources", "mini", "nano"))
    monkeypatch.setattr(importlib.import_module("objective").shutil, "which", lambda name: None)
    monkeypatch.setattr(sources, "VOCABULARY", 512)
    monkeypatch.setattr(sources, "_DRAWN_FOR_TOKENIZER", 100)
    monkeypatch.setattr(nano, "ANSWERS", 16)
    shape = importlib.import_module("decoder").Shape
    for module, layers in ((mini, 2), (nano, 1)):
        monkeypatch.setattr(
            module,
            "SHAPE",
            shape(
                vocabulary=512, hidden=64, intermediate=96, layers=layers, heads=2, kv_heads=1, context=1024
            ),
        )
    recipe = importlib.import_module("recipe")
    plan = recipe.Plan
    monkeypatch.setattr(recipe, "Plan", lambda **given: plan(**given | {"measure_every_steps": 2}))
    evaluate = importlib.import_module("evaluate")
    for name in ("SHELL_COUNT", "SQL_COUNT", "TOOLS_COUNT"):
        monkeypatch.setattr(evaluate, name, min(getattr(evaluate, name), 40))


def _run(monkeypatch: pytest.MonkeyPatch, recipe: str, data: Path, work: Path, out: Path, *more: str) -> int:
    arguments = [f"{recipe}.py", f"--data={data}", f"--work={work}", f"--out={out}", "--threads=1", *more]
    monkeypatch.setattr(sys, "argv", arguments)
    return importlib.import_module(recipe).main()
