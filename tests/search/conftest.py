"""Stores of indexes for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from index_stores import STORES, Store


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    folder = tmp_path / "indexes"
    found = (
        Store(folder) if request.param == "local" else request.getfixturevalue(request.param).store(folder)
    )
    yield found
    found.close()
