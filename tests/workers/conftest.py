"""Tiny models in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.engine.client import LoadedModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.worker_loader import WorkerLoader
from tiny import tiny_model

OPTIONS = EngineOptions(threads=1, max_num_seqs=4)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def here(folder: Path) -> Iterator[LoadedModel]:
    """The model in this process, for comparison."""
    model = load_model(str(folder), OPTIONS)
    yield model
    model.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[], LoadedModel]]:
    """Start the model in separate workers, which are stopped at the end of the test."""
    models: list[LoadedModel] = []

    def load() -> LoadedModel:
        launch = WorkerLoader(ModelSpec(name="tiny", model=str(folder), options=OPTIONS))
        launch.plan(None)
        models.append(launch.load(lambda done, total: None))
        return models[-1]

    yield load
    for model in models:
        model.close()


@pytest.fixture
def remote(start: Callable[[], LoadedModel]) -> LoadedModel:
    """The model in a worker."""
    return start()
