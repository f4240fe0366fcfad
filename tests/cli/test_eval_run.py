"""`headrace eval run`: a suite over a shipped model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from invocation import Outcome

SUITE = """
name: small
max_tokens: 8
at_least: 0.5
evaluator: {type: rules, rules: [{max_characters: 200}]}
cases:
  - {prompt: "list all files", id: files}
  - {prompt: "show the date", rules: [{contains: "no command has this"}]}
"""


def test_the_command_runs_a_shipped_model(tmp_path: Path, inside: Callable[..., Outcome]) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    done = inside("eval", "run", "s.yaml", "--model", "nano", "--model", "nano", "--json")
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout)
    assert [one["scored"] for one in report["models"]] == [2, 2] and report["cases"] == 2
    assert report["models"][0]["score"]["mean"] == 0.5 and report["models"][0]["failed"][0]["case"] == "2"
    assert report["comparison"]["same"] == 2 and not report["comparison"]["is_significant"]
    assert inside("eval", "run", "none.yaml").code == 2
