"""Documents for a query, by each kind of model that can; labels that come with the request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from head_models import head_model
from headrace import LLM
from headrace.errors import InvalidRequest
from headrace.inference.requests import TextPair

QUERY, DOCUMENTS = "a good day", ["a bad day", "What a good day!", "é", ""]
NLI = {"id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rerank")


@pytest.fixture(scope="module")
def cross_encoder(folders: Path) -> Iterator[LLM]:
    with LLM(head_model(folders, "heads/qwen3_reward"), cache_dir=None) as llm:
        yield llm


def test_a_cross_encoder_ranks_by_its_scores(cross_encoder: LLM) -> None:
    found = cross_encoder.rerank(QUERY, DOCUMENTS)
    scores = [
        one.scores[0] for one in cross_encoder.classify([TextPair(QUERY, text) for text in DOCUMENTS])
    ]
    assert [one.index for one in found] == sorted(range(4), key=lambda at: -scores[at])
    assert [one.score for one in found] == sorted(scores, reverse=True)
    assert cross_encoder.rerank(QUERY, DOCUMENTS, top_n=2) == found[:2]


def test_an_embedder_ranks_by_cosines() -> None:
    with LLM("embed", cache_dir=None) as llm:
        documents = ["tar -xf a.tar", "ls -l", "sleep 5"]
        found = llm.rerank("list files", documents)
        cosines = llm.embed(documents) @ llm.embed("list files")[0]
    assert [one.index for one in found] == list(np.argsort(-cosines))
    assert [one.score for one in found] == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)


def test_zero_shot_is_that_of_transformers(folders: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    folder = head_model(folders, "heads/bert_classify", num_labels=None, label2id=None, **NLI)
    texts, labels = ["a bad day", "What a good day!"], ["good", "bad", "day"]
    pipeline: Any = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    with LLM(folder, cache_dir=None) as llm:
        for multi_label in (False, True):
            expected = pipeline(texts, labels, multi_label=multi_label)
            found = llm.classify(texts, labels=labels, multi_label=multi_label)
            for one, wanted in zip(found, expected, strict=True):
                by_label = dict(zip(wanted["labels"], wanted["scores"], strict=True))
                assert one.scores == pytest.approx([by_label[label] for label in labels], abs=1e-4)


def test_zero_shot_by_vectors() -> None:
    with LLM("embed", cache_dir=None) as llm:
        [one] = llm.classify("show all files in a folder", labels=["ls -l", "reboot"])
        assert one.label == "ls -l"
        assert sum(one.scores) == pytest.approx(1)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"query": " ", "documents": ["a"]}, "query"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["a"] * 2049}, "documents"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
def test_what_means_nothing(cross_encoder: LLM, arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cross_encoder.rerank(**arguments)
    assert caught.value.param == param


def test_a_generator_ranks_nothing() -> None:
    with LLM("nano", cache_dir=None) as llm, pytest.raises(InvalidRequest, match="can generate text"):
        llm.rerank("a", ["b"])


def test_labels_of_a_classifier_with_its_own(cross_encoder: LLM) -> None:
    with pytest.raises(InvalidRequest, match="labels of its own"):
        cross_encoder.classify("a", labels=["b"])
