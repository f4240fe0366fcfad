"""Classifiers from examples: in Python with asyncio, and as a model of a server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import LLM, AsyncLLM
from headrace.engine.client import LoadedModel
from headrace.errors import CorruptFile, InvalidRequest
from headrace.inference.keywords import new_call
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import TextPair
from headrace.loading.options import EngineOptions
from headrace.tasks.classify import classify
from headrace.tasks.few_shot import check_examples
from headrace.tasks.label_scores import Classification, activated
from headrace.tasks.pooling import pool
from headrace.weights.fitted_head import SETTINGS_FILE
from headrace.workers.model_spec import ModelSpec
from headrace.workers.worker_loader import WorkerLoader
from tiny import tiny_model

EXAMPLES = {"sea": ["the sea", "a wave", "deep water"], "cats": ["a cat", "two cats", "my cat"]}
Saved = tuple[Path, list[Classification]]
TEXTS = ["my cat and the sea", "a wave"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("encoder"), "encoders/bert")


@pytest.fixture(scope="module")
def saved(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("topics")
    with LLM(encoder, cache_dir=None) as llm:
        made = llm.fit_classifier(EXAMPLES)
        made.save(folder)
        return folder, made.classify(TEXTS)


def test_asyncio_fits_the_same(encoder: Path, saved: Saved, tmp_path: Path) -> None:
    async def main() -> list[Classification]:
        async with AsyncLLM(encoder, cache_dir=None) as llm:
            made = await llm.fit_classifier(EXAMPLES)
            made.save(tmp_path / "again")
            assert made.labels == ("cats", "sea")
            assert await llm.load_classifier(saved[0]).classify(TEXTS) == saved[1]
            return await made.classify(TEXTS)

    assert asyncio.run(main()) == saved[1]


def test_a_folder_is_a_model(saved: Saved) -> None:
    with LLM(saved[0], cache_dir=None) as llm:
        assert llm.model.tasks == ("classify",) and llm.model.name == saved[0].name
        assert llm.classify(TEXTS) == saved[1]
        assert sum(llm.classify(TEXTS, raw=True)[0].scores) != pytest.approx(1)
        with pytest.raises(InvalidRequest, match="classifies texts, not pairs"):
            llm.classify([TextPair("a", "b")])
        with pytest.raises(InvalidRequest, match="it can classify texts"):
            llm.embed("x")


def test_a_server_loads_the_folder(saved: Saved) -> None:
    options = EngineOptions(threads=1, cache_dir=None)
    launch = WorkerLoader(ModelSpec(name="topics", model=str(saved[0]), options=options))
    launch.plan(None)
    model: LoadedModel = launch.load(lambda done, total: None)
    try:
        assert model.head is not None and model.head.labels == ("cats", "sea")

        async def ask(**options: Any) -> list[Classification]:
            source, threads = OneModel(model), ModelThreads(1)
            with threads:
                runner = ModelRunner(LocalHandler(source, threads), source, threads)
                return await classify(runner, "topics", TEXTS, new_call(), **options)

        async def pooled(**options: Any) -> list[Any]:
            source, threads = OneModel(model), ModelThreads(1)
            with threads:
                runner = ModelRunner(LocalHandler(source, threads), source, threads)
                rows = await pool(runner, "topics", TEXTS, new_call(), most=1000, **options)
                return [row.tolist() for row in rows]

        found, logits = asyncio.run(ask()), asyncio.run(ask(raw=True))
        for rows, own in ((pooled(), found), (pooled(activation=False), logits)):
            assert np.allclose(asyncio.run(rows), [one.scores for one in own], atol=1e-6)
        each = asyncio.run(ask(activation="sigmoid"))  # in the place of its own
        assert each[0].scores == pytest.approx(activated(np.array(logits[0].scores), "sigmoid").tolist())
        assert [one.label for one in found] == [one.label for one in saved[1]]
        assert found[0].scores == pytest.approx(saved[1][0].scores, abs=1e-5)
    finally:
        model.close()


@pytest.mark.parametrize(
    "examples",
    [
        {"a": "several", "b": ["x"]},
        {"a": [1], "b": ["x"]},
        [("x", "a"), ("y", 3)],
        [("x",), ("y", "b")],
        ["xa"],
    ],
)
def test_examples_that_are_no_texts_are_refused(examples: Any) -> None:
    with pytest.raises(InvalidRequest, match="it must be ") as error:
        check_examples(examples)
    assert error.value.param == "examples"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"encoder": "x", "labels": ["a"]}, "1 labels"),
        ({"encoder": "x", "labels": ["a", "a"]}, "2 labels"),
        ({"encoder": 3, "labels": ["a", "b"]}, "cannot be read"),
        ({"labels": ["a", "b"]}, "cannot be read"),
    ],
)
def test_settings_that_mean_nothing(tmp_path: Path, settings: object, error: str) -> None:
    (tmp_path / SETTINGS_FILE).write_text(json.dumps(settings))
    with pytest.raises(CorruptFile, match=error):
        LLM(tmp_path, cache_dir=None)
