"""`headrace route` against a server: explain, list, calibrate, remove."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main as command_line
from headrace.errors import HeadraceError

pytest.importorskip("aiohttp", reason="the extra gateway is not installed")
sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from fake import FakeModel
from in_process import running_server

ENTRIES: dict[str, Any] = {
    "auto": {"targets": ["work/small", "work/big"], "route": "cascade"},
    "cheap": {"targets": ["work/small", "work/big"], "route": "cheapest"},
}


def headrace(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command_line.main(words)
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_a_route_from_calibration_to_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.gateway.cascade.KEPT_S", 0.0)
    url, store = "http://127.0.0.1:9/v1", str(tmp_path / "store.sqlite3")
    Path("headrace.toml").write_text(
        '[models.auto]\ntargets = ["work/small", "work/big"]\nroute = "cascade"\n'
        f'[providers.work]\ndialect = "openai_chat"\nbase_url = "{url}"\n'
    )
    line = {"is_wrong": False, "small_model": f"work {url} small", "large_model": f"work {url} big"}
    Path("pairs.jsonl").write_text("".join(json.dumps({**line, "score": -n}) + "\n" for n in range(200)))
    providers = {"work": {"dialect": "openai_chat", "base_url": url}}
    with running_server(FakeModel(), remote=ENTRIES, providers=providers, store=store) as server:
        flags = ("--port", str(server.port))
        assert headrace("route", "list", *flags) == 0
        assert "no certificate" in capsys.readouterr().out
        assert headrace("route", "calibrate", "-m", "auto", "pairs.jsonl", "--store", store, *flags) == 0
        assert "95%" in capsys.readouterr().out
        assert headrace("route", "explain", "-m", "auto", "Hello?", *flags) == 0
        said = capsys.readouterr().out
        assert "gate: open" in said and said.index("work/small") < said.index("work/big"), said
        assert headrace("route", "explain", "-m", "cheap", "Hello?", "--json", *flags) == 0
        assert json.loads(capsys.readouterr().out)["targets"][0]["usd"] is None
        assert headrace("route", "remove", "-m", "auto", "--store", store, *flags) == 0
        assert headrace("route", "explain", "-m", "nothing", "Hello?", *flags) == 1
        assert "no route" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "no object"),
        ("{", "line 1"),
        ('{"score": NaN}', "line 1"),
        ('{"score": "1"}', "line 1"),
        ('{"score": 1}', "is_wrong"),
    ],
)
def test_files_that_are_no_pairs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("headrace.toml").write_text('[models.auto]\ntargets = ["a", "b"]\nroute = "cascade"\n')
    Path("pairs.jsonl").write_text(text)
    assert headrace("route", "calibrate", "-m", "auto", "pairs.jsonl") == 2
    assert word in capsys.readouterr().err


def test_a_calibration_that_failed_asks_only_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked, table = list[str](), '[models.auto]\nroute = "cascade"\ntargets = ["work/small", "work/big"]\n'
    Path("headrace.toml").write_text(table)
    questions = [f"Question {n}?" for n in range(200)]
    Path("pairs.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in questions))
    names = {"small_model": "work http://a/v1 small", "large_model": "work http://a/v1 big"}

    def answer(_settings: object, _method: str, _path: str, body: Any) -> Any:
        assert body["model"] == "auto"
        if len(asked) == 120:
            asked.append("failed")
            raise HeadraceError("the provider is out of money")
        asked.append(body["messages"][0]["content"])
        return {"score": -len(asked), "is_wrong": False, **names}

    monkeypatch.setattr("headrace.cli.route.call_server", answer)
    words = ("route", "calibrate", "-m", "auto", "pairs.jsonl", "--store", "store.sqlite3", "--risk")
    assert headrace(*words, "0.05") == 1
    kept = Path("pairs.jsonl.scored")
    with kept.open("ab") as file:
        file.write(b'["torn by a ki')
    assert headrace(*words, "0.05") == 0
    assert "120 of 200 pairs were scored before" in capsys.readouterr().err
    assert headrace(*words, "0.1") == 0
    assert sorted(asked) == sorted([*questions, "failed"])
    assert "Question" not in kept.read_text()
    Path("headrace.toml").write_text(table.replace("big", "new"))
    assert headrace(*words, "0.05") == 0
    assert len(asked) == 401, "scores of other settings were used"
