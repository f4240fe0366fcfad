"""Classifiers as Python has them, against the pipeline of `transformers`; what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from head_models import head_model
from headrace import LLM
from headrace.errors import ContextLengthExceeded, CorruptFile, InvalidRequest
from headrace.inference.requests import TextPair

TEXTS = ["a bad day", "What a good day!", "é", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return head_model(tmp_path_factory.mktemp("classifier"), "heads/bert_classify")


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Iterator[LLM]:
    with LLM(folder, cache_dir=None) as llm:
        yield llm


def pipeline(folder: Path, task: str, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    return transformers.pipeline(task, model=str(folder), device="cpu", **options)


def test_scores_are_those_of_the_pipeline(folder: Path, classifier: LLM) -> None:
    expected = pipeline(folder, "text-classification", top_k=None)(TEXTS)
    for found, scores in zip(classifier.classify(TEXTS), expected, strict=True):
        by_label = {one["label"]: one["score"] for one in scores}
        assert found.scores == pytest.approx([by_label[label] for label in found.labels], abs=1e-4)
        assert found.label == max(by_label, key=lambda label: by_label[label])
        assert found.score == max(found.scores) and sum(found.scores) == pytest.approx(1)


def test_pairs_have_token_types(folder: Path, classifier: LLM) -> None:
    expected = pipeline(folder, "text-classification", top_k=None)({"text": "a b", "text_pair": "c d"})
    [found] = classifier.classify([TextPair("a b", "c d")])
    by_label = {one["label"]: one["score"] for one in expected}
    assert found.scores == pytest.approx([by_label[label] for label in found.labels], abs=1e-4)
    assert found.scores != classifier.classify("a b c d")[0].scores


def test_raw_scores_are_logits(classifier: LLM) -> None:
    raw = np.array(classifier.classify("abc", raw=True)[0].scores)
    shares = np.exp(raw) / np.exp(raw).sum()
    assert classifier.classify("abc")[0].scores == pytest.approx(shares, abs=1e-6)


def test_a_model_does_what_it_can_only(classifier: LLM) -> None:
    with pytest.raises(InvalidRequest, match="cannot embed texts, it can classify texts"):
        classifier.embed("a")
    with pytest.raises(InvalidRequest, match="cannot make sparse vectors, it can classify texts"):
        classifier.sparse("a")
    with LLM("novelette", cache_dir=None) as llm, pytest.raises(InvalidRequest, match="it can generate text"):
        llm.classify("a")


def test_long_texts_are_refused_or_cut(classifier: LLM) -> None:
    long = "a " * 2000
    with pytest.raises(ContextLengthExceeded):
        classifier.classify(long)
    assert len(classifier.classify([long, "a"], truncate=True)) == 2


def test_one_label_is_a_score(tmp_path: Path) -> None:
    with LLM(head_model(tmp_path, "heads/qwen3_reward"), cache_dir=None) as llm:
        [found] = llm.classify("a b c")
        [raw] = llm.classify("a b c", raw=True)
    assert found.label == "LABEL_0" and 0 < found.score < 1
    assert found.score == pytest.approx(1 / (1 + np.exp(-raw.score)), abs=1e-6)


def test_labels_that_the_weights_do_not_have(tmp_path: Path) -> None:
    folder = head_model(tmp_path, "heads/bert_classify", id2label={"0": "no", "1": "yes"})
    with pytest.raises(CorruptFile, match=r"2 labels .*no, yes.* classifier.weight .* 3 outputs"):
        LLM(folder, cache_dir=None)


@pytest.mark.parametrize("quantization", ["bf16", "int8", "int4"])
def test_quantized_heads_are_near(folder: Path, classifier: LLM, quantization: Any) -> None:
    exact = classifier.classify("a good day", raw=True)[0].scores
    with LLM(folder, cache_dir=None, quantization=quantization) as llm:
        found = llm.classify("a good day", raw=True)[0].scores
    largest = {"bf16": 0.05, "int8": 0.1, "int4": 0.8}[quantization]
    assert np.abs(np.subtract(found, exact)).max() <= largest * np.abs(exact).max()
