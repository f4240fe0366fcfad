"""What the reliability tests share: figures that are shown whatever pytest captures, and model folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny import tiny_model


@pytest.fixture
def show(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line of figures, headed by the test's name."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}")

    return line


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Llama and a tokenizer whose ids are bytes."""
    return tiny_model(tmp_path_factory.mktemp("reliability"))
