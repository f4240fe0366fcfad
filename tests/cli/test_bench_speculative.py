"""`headrace bench speculative` as a command: table, JSON, plot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from invocation import Outcome


def test_the_command_prints_and_plots(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    prompts = tmp_path / "own.txt"
    prompts.write_text("The sea was calm.\n\nThe sea was rough.\n")
    flags = ["bench", "speculative", "--prompts", str(prompts), "--tokens", "8", "--pairs", "1", "--raw"]
    table = inside(*flags, "--png", str(tmp_path / "a.png"))
    assert table.code == 0 and "SPEED-UP" in table.stdout and "own" in table.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    [cell] = json.loads(inside(*flags, "--json").stdout)
    assert (cell["job"], cell["drafter"], cell["batch"]) == ("own", "lookup", 1)


def test_each_prompt_file_is_a_task(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    lines, objects = tmp_path / "lines.txt", tmp_path / "objects.jsonl"
    lines.write_text("The sea was calm.\n")
    objects.write_text(json.dumps({"prompt": "The sea\nwas rough."}) + "\n")
    files = ["--prompts", str(lines), "--prompts", str(objects)]
    outcome = inside("bench", "speculative", *files, "--tokens", "4", "--pairs", "1", "--raw", "--json")
    assert [cell["job"] for cell in json.loads(outcome.stdout)] == ["lines", "objects"]


def test_a_file_without_prompts_is_refused_with_its_line(
    inside: Callable[..., Outcome], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    outcome = inside("bench", "speculative", "--prompts", str(wrong), "--raw")
    assert outcome.code == 2 and "wrong.jsonl, line 2" in outcome.stderr


def test_two_files_of_one_name_are_refused(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.txt").write_text("The sea was calm.\n")
    files = [word for folder in ("a", "b") for word in ("--prompts", str(tmp_path / folder / "job.txt"))]
    outcome = inside("bench", "speculative", *files, "--raw")
    assert outcome.code == 2 and "two files 'job'" in outcome.stderr
