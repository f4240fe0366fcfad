"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Before torch and NumPy are imported: the models of tests are so small that their threads would only wait for
# one another, and tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# An example that a busy machine delays is no failure.
hypothesis.settings.register_profile("headrace", deadline=None)
hypothesis.settings.load_profile("headrace")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests pack and store goes to folders of their own, also in the programs that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real inputs beside the checkout; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("HEADRACE_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real inputs are not here: set HEADRACE_SHARED_DATA (looked in {folder})")
    return folder


@pytest.fixture(scope="session")
def pgvector() -> Iterator[Any]:
    """A PostgreSQL server with pgvector, see `index_stores.Server`."""
    from index_stores import pgvector_server

    with pgvector_server() as server:
        yield server


@pytest.fixture(scope="session")
def qdrant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A stand-in for a Qdrant server, see `index_stores.QdrantStores`."""
    from index_stores import qdrant_server

    with qdrant_server(tmp_path_factory.mktemp("qdrant")) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have measured: with xdist, what they print is not shown."""
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if getattr(report, "when", "") == "call":
            for name, value in report.user_properties:
                if name == "figures":
                    terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {value}")
