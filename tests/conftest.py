"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("HEADRACE_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real inputs are not here: set HEADRACE_SHARED_DATA (looked in {folder})")
    return folder
