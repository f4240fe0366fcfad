"""Tiny models in replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.cluster_loader import ClusterLoader
from headrace.config.cluster_settings import ClusterSettings
from headrace.engine.client import LoadedModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import Spawner
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
def cluster(folder: Path) -> Iterator[Callable[..., ClusterClient]]:
    """Start the model in replicas, which are stopped at the end of the test."""
    models: list[LoadedModel] = []
    spawner = Spawner()

    def load(path: Path | None = None, **settings: Any) -> ClusterClient:
        spec = ModelSpec(name="tiny", model=str(path or folder), options=OPTIONS)
        loader = ClusterLoader(spec, ClusterSettings(**settings), spawner=spawner)
        loader.plan(None)
        models.append(loader.load(lambda done, total: None))
        engine = models[-1].engine
        assert isinstance(engine, ClusterClient)
        return engine

    yield load
    for model in models:
        model.close()
    spawner.close()
