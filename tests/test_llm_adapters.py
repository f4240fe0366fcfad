"""Adapters of `LLM` and of `headrace run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace import LLM
from headrace.cli.main import build
from headrace.errors import ModelNotFound
from peft_adapters import write_adapter
from tiny import tiny_model


def test_a_call_names_its_adapter(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    adapter = write_adapter(tmp_path / "sql", model)
    greedy = {"max_tokens": 12, "temperature": 0.0}
    with LLM(model, threads=1, adapters={"sql": adapter}) as llm:
        base = llm.generate("abc", **greedy)
        adapted = llm.generate("abc", adapter="sql", **greedy)
        assert base.text != adapted.text
        assert llm.chat([{"role": "user", "content": "hi"}], adapter="sql", **greedy).text
        with pytest.raises(ModelNotFound, match="'other' is not loaded, loaded are: sql"):
            llm.generate("abc", adapter="other")
        assert llm.generate("abc", **greedy).text == base.text
    with pytest.raises(ModelNotFound, match="there is no adapter"):
        LLM(model, threads=1, adapters={"sql": tmp_path / "none"})

    def run(*more: str) -> dict[str, object]:
        words = [str(model), "abc", "--raw", "--json", "--max-tokens", "12", "--temperature", "0", *more]
        result = CliRunner().invoke(build(["run"]), ["run", *words])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    assert run()["text"] == base.text
    told = run("--adapter", str(adapter))
    assert (told["text"], told["model"]) == (adapted.text, "llama3:sql")
