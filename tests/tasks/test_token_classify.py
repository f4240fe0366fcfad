"""Entities of token classifiers: all aggregations against `transformers`, schemes of labels, windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from head_models import head_model
from headrace import LLM
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.inference.keywords import new_call
from headrace.tasks.token_classify import token_classify
from headrace.tasks.token_labels import TokenEntity, TokenScores, read_entities

LABELS = {"0": "O", "1": "B-PER", "2": "I-PER"}
TEXTS = ["Ann Lee saw Rome, in the rain", "é  is béd", "don't xyz abc defghi jk lmno", "ø ab"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return head_model(tmp_path_factory.mktemp("tokens"), "heads/bert_tokens", id2label=LABELS)


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LLM]:
    with LLM(folder, cache_dir=None) as llm:
        yield llm


def found(llm: LLM, texts: list[str], **options: Any) -> list[list[TokenEntity]]:
    return llm._thread.run(token_classify(llm.runner, None, texts, new_call(), **options))


def pipeline(folder: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    return transformers.pipeline("token-classification", model=str(folder), device="cpu", **options)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(folder: Path, model: LLM, aggregation: Any) -> None:
    expected = pipeline(folder, aggregation_strategy=aggregation)(TEXTS)
    for entities, wanted in zip(found(model, TEXTS, aggregation=aggregation), expected, strict=True):
        name = "entity" if aggregation == "none" else "entity_group"
        assert [(e.start, e.end, e.label) for e in entities] == [
            (e["start"], e["end"], e[name]) for e in wanted
        ]
        assert [e.score for e in entities] == pytest.approx([e["score"] for e in wanted], abs=1e-4)
    assert any(expected)


def test_windows_are_those_of_the_pipeline(folder: Path, tmp_path: Path) -> None:
    text = " ".join(["Ann Lee saw Rome in the rain"] * 4)
    expected = pipeline(folder, aggregation_strategy="simple", stride=6, tokenizer=tokenizer_of(folder, 24))(
        text
    )
    with LLM(folder, cache_dir=None, max_model_len=24) as llm:
        [entities] = found(llm, [text], stride=6)
        with pytest.raises(ContextLengthExceeded, match=r"text 0 has \d+ tokens"):
            found(llm, [text])
        assert len(found(llm, [text], truncate=True)[0]) < len(entities)
        for stride in (-1, 22):
            with pytest.raises(InvalidRequest, match="stride"):
                found(llm, ["a"], stride=stride)
    assert [(e.start, e.end, e.label) for e in entities] == [
        (e["start"], e["end"], e["entity_group"]) for e in expected
    ]


def tokenizer_of(folder: Path, longest: int) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder, model_max_length=longest)


def test_unknown_aggregations_are_refused(model: LLM) -> None:
    with pytest.raises(InvalidRequest, match="aggregation is 'best'"):
        found(model, ["a"], aggregation="best")


def entities_of(labels: list[str], names: list[str]) -> list[tuple[int, int, str]]:
    tokens = [
        TokenScores(i, i + 1, False, np.eye(len(labels), dtype=np.float32)[labels.index(name)])
        for i, name in enumerate(names)
    ]
    return [(one.start, one.end, one.label) for one in read_entities(tokens, labels, "simple")]


def test_ends_and_single_tokens_end_entities() -> None:
    labels = ["O", "B-A", "I-A", "E-A", "S-A"]
    names = ["S-A", "S-A", "O", "B-A", "I-A", "E-A", "I-A", "B-A", "E-A"]
    expected = [(0, 1, "A"), (1, 2, "A"), (3, 6, "A"), (6, 7, "A"), (7, 9, "A")]
    assert entities_of(labels, names) == expected
    bilou = [label.replace("E-", "L-").replace("S-", "U-") for label in labels]
    assert entities_of(bilou, [n.replace("E-", "L-").replace("S-", "U-") for n in names]) == expected


def test_labels_that_only_look_like_a_scheme() -> None:
    assert entities_of(["O", "S-1", "city"], ["S-1", "S-1", "city"]) == [(0, 2, "S-1"), (2, 3, "city")]
    assert entities_of(["O", "I-A", "B-A"], ["I-A", "B-A", "I-A"]) == [(0, 1, "A"), (1, 3, "A")]


def test_an_empty_list_and_text(model: LLM) -> None:
    assert found(model, []) == [] and found(model, [""]) == [[]]


def test_windows_have_a_budget_of_tokens(folder: Path) -> None:
    with LLM(folder, cache_dir=None, max_model_len=64) as llm:
        text = "ann lee " * 10_000
        with pytest.raises(InvalidRequest, match="more than 1,000,000 tokens") as refused:
            found(llm, [text], stride=61)
    assert refused.value.param == "stride"
