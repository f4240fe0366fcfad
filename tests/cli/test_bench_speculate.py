"""`headrace bench speculate` as a command: its table, its JSON, its picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from invocation import Outcome


def test_the_command_prints_and_draws(inside: Callable[..., Outcome], tmp_path: Path) -> None:
    prompts = tmp_path / "own.txt"
    prompts.write_text("The sea was calm.\n\nThe sea was rough.\n")
    flags = ["bench", "speculate", "--prompts", str(prompts), "--tokens", "8", "--pairs", "1", "--raw"]
    table = inside(*flags, "--png", str(tmp_path / "a.png"))
    assert table.code == 0 and "SPEED-UP" in table.stdout and "own" in table.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    [cell] = json.loads(inside(*flags, "--json").stdout)
    assert (cell["job"], cell["drafter"], cell["batch"]) == ("own", "lookup", 1)
