"""`headrace providers`: keys are kept without being shown, and providers are asked whether they answer."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invocation import Outcome

from headrace.cli.main import main

pytest.importorskip("aiohttp", reason="the extra gateway is not installed")
pytest.importorskip("cryptography", reason="the extra gateway is not installed")

from fake_provider import fail, running_provider, send

Inside = Callable[..., Outcome]
CANARY = "sk-canary-4f1d9b7c2e"


def add(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """`providers add` with the key on stdin."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(CANARY + "\n"))
    with pytest.raises(SystemExit) as stop:
        main(["providers", "add", name])
    assert isinstance(stop.value.code, int)
    return Outcome(stop.value.code, *capsys.readouterr())


def test_a_key_is_kept_listed_tested_and_removed(
    inside: Inside,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with running_provider(send(b'{"data": []}', content_type="application/json"), fail(401)) as provider:
        (tmp_path / "headrace.toml").write_text(
            f'[providers.work]\ndialect = "openai_chat"\nbase_url = "{provider.url}"\n'
            '[models.far]\nprovider = "work"\nmodel = "m"\n'
        )
        added = add("work", capsys, monkeypatch)
        assert added.code == 0 and "key file" in added.stdout and CANARY not in added.stdout + added.stderr
        listed = inside("providers", "list", "--json")
        (line,) = json.loads(listed.stdout)
        assert (line["name"], line["key_from"]) == ("work", "store") and CANARY not in listed.stdout
        assert "work" in inside("providers", "list").stdout
        assert inside("providers", "test").code == 0
        assert provider.exchanges[0].headers["authorization"] == f"Bearer {CANARY}"
        assert (provider.exchanges[0].method, provider.exchanges[0].path) == ("GET", "/v1/models")
        failed = inside("providers", "test", "work", "--json")
        assert failed.code == 1 and "401" in json.loads(failed.stdout)[0]["problem"]
        models: list[Any] = json.loads(inside("list", "--json").stdout)
        assert [m["about"] for m in models if m["source"] == "remote"] == ["m of work"]
        assert "far" in inside("list").stdout
        assert inside("providers", "rm", "work").code == 0
        assert json.loads(inside("providers", "list", "--json").stdout)[0]["key_from"] == "none"


def test_wrong_use(
    inside: Inside, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = add("nowhere", capsys, monkeypatch)
    assert unknown.code == 2 and "[providers.nowhere]" in unknown.stderr
    assert inside("providers", "rm").code == 2
    assert inside("providers", "test", "nowhere").code == 2
    assert inside("providers", "rm", "openai").code == 1
