"""What the reliability tests share: figures that are shown whatever pytest captures, and model folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny import tiny_model


@pytest.fixture
def show(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Have a line of figures shown when the tests are over, headed by the test's name."""
    return lambda text: record_property("figures", text)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Llama and a tokenizer whose ids are bytes."""
    return tiny_model(tmp_path_factory.mktemp("reliability"))
