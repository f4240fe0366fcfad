"""`headrace eval run`: a suite over a shipped model."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from in_process import server_of
from invocation import Outcome

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

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


def test_a_judge_is_a_model_of_this_machine_and_people_correct_it(
    tmp_path: Path, inside: Callable[..., Outcome]
) -> None:
    """Both orders are asked, every verdict is one of three words, and labels calibrate it; the same loaded
    here and behind a server, to the byte."""
    texts = {"list files": "ls", "show the date": "date", "print the folder": "pwd", "who am I": "whoami"}
    labels = [
        {"prompt": asked, "answer": said if number % 2 else "rm", "expected": said, "score": number % 2}
        for number, (asked, said) in enumerate([*texts.items()] * 3)
    ]
    suite = {
        "name": "judged",
        "max_tokens": 8,
        "evaluator": {"type": "judge", "model": "nano", "labels": labels},
        "cases": [{"prompt": asked, "expected": said} for asked, said in texts.items()],
    }
    (tmp_path / "j.yaml").write_text(json.dumps(suite))  # JSON is YAML, too
    done = inside("eval", "run", "j.yaml", "--model", "nano", "--json")
    assert done.code == 0, done.stderr
    [found] = json.loads(done.stdout)["models"]
    assert found["scored"] == 4 and found["errors"] == 0 and found["corrected"] is not None
    judge = {"model": "nano", "asked": 2 * (4 + 12), "unreadable": 0, "labels": 12}
    assert judge == {name: value for name, value in found["judge"].items() if name != "swayed"}
    with closing(load_model("nano", EngineOptions(threads=1))) as nano, server_of(nano) as server:
        port = str(server.port)
        done = inside("eval", "run", "j.yaml", "--server", "--port", port, "--model", "nano", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["models"] == [found]
