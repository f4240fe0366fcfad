"""`headrace distil` and `headrace prune --heal` on shipped models; teachers behind real servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import shipped_model_server
from invocation import Outcome

TEXT = "The river rose in the night, and by morning the mill stood in water. " * 3


def story(words: int) -> str:
    return " ".join(f"{TEXT[n % 60 : n % 60 + 40]} {n}." for n in range(words))


@pytest.mark.nightly
def test_a_pruned_model_is_healed_in_the_same_command(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs headrace[train]")
    pytest.importorskip("transformers", reason="needs headrace[train]")
    data, out = tmp_path / "data.txt", tmp_path / "out"
    data.write_text(story(600))
    flags = ("--drop-layers", "50%", "--windows", "2", "--heal", str(data), "--hours", "0.001", "--json")
    outcome = inside("prune", "mini", str(out), *flags)
    assert outcome.code == 0, outcome.stderr
    said = json.loads(outcome.stdout)
    assert said["healed"]["held_out_after"] < said["healed"]["held_out_before"]
    assert said["quality"]["kl"]["mean"] > 0 and said["layers"]["after"] == 3
    card = (out / "README.md").read_text()
    assert "healed on: data.txt" in card and "KL mean" in card
    assert not list(tmp_path.glob(".out*")), "neither the work folder nor a staged model is left"


def test_a_wrong_teacher_behind_a_real_server_is_refused(
    inside: Callable[..., Outcome], tmp_path: Path
) -> None:
    """`novelette` tells stories: it answers, every time the same, and wrong."""
    pytest.importorskip("torch", reason="needs headrace[train]")
    pytest.importorskip("transformers", reason="needs headrace[train]")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"list {n} files\n" for n in range(40)))
    with shipped_model_server("{% for m in messages %}{{ m.content }}{% endfor %}") as running:
        address = f"http://127.0.0.1:{running.port}/v1"
        flags = (
            "--prompts",
            str(prompts),
            "--out",
            str(tmp_path / "out"),
            "--steps",
            "2",
            "--max-tokens",
            "12",
        )
        outcome = inside("distil", address, "mini", *flags)
    assert outcome.code == 1 and "the teacher is wrong" in outcome.stderr
    assert "general questions of headrace" in outcome.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["mini", "nano"], "give either --data, a text, or --prompts"),
        (["mini", "nano", "--data", "d.txt", "--prompts", "d.txt"], "give either --data or --prompts"),
        (["mini", "nano", "--data", "d.txt", "--on-policy", "2"], "give a share from 0 to 1"),
        (["mini", "nano", "--data", "d.txt", "--teacher-model", "x"], "are of an address"),
        (["mini", "nano", "--data", "d.txt", "--probe", "p.txt"], "needs an `answer`"),
        (["mini", "nano", "--data", "d.txt", "--holdout", "p.txt"], "--holdout goes with --labels"),
        (["mini", "embed", "--prompts", "d.txt", "--labels", "one"], "two labels at least"),
        (["mini", "embed", "--prompts", "d.txt"], "an encoder learns vectors"),
        (["https://api.openai.com/v1", "mini", "--prompts", "d.txt"], "restrict the training"),
        (["./licensed", "nano", "--data", "d.txt"], "does not allow to train other models"),
        (["http://127.0.0.1:9/v1", "mini", "--prompts", "d.txt", "--api-key-env", "NO_X"], "is not set"),
    ],
)
def test_what_cannot_be_is_refused(
    inside: Callable[..., Outcome], tmp_path: Path, flags: list[str], message: str
) -> None:
    if "torch" not in message:
        pytest.importorskip("torch", reason="needs headrace[train]")
    (tmp_path / "d.txt").write_text(TEXT)
    (tmp_path / "p.txt").write_text("a question\n")
    licensed = tmp_path / "licensed"
    licensed.mkdir()
    (licensed / "README.md").write_text("---\nlicense: llama2\n---\n# A teacher\n")
    (licensed / "config.json").write_text("{}")
    outcome = inside("distil", *flags, "--out", str(tmp_path / "out"))
    assert outcome.code in (1, 2) and message in outcome.stderr, outcome.stderr
    assert not (tmp_path / "out").exists()
