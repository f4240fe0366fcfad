"""Commands within this process."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.main import main


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run `headrace adapt ARGUMENTS`, which ends with the exit code `code`; what it prints."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        os, "nice", lambda by: 0
    )  # these tests' process keeps its priority: others follow in it

    def call(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(("adapt", *arguments))
        said = capsys.readouterr()
        assert stop.value.code == code, said.err
        return said.out if code == 0 else said.err

    return call
