"""huggingface_hub's InferenceClient at the paths of text-embeddings-inference and of its pipelines."""

from __future__ import annotations

import numpy as np
import pytest
from in_process import Running
from vectors import DOCUMENTS, QUERY, expected_vectors, same

hub = pytest.importorskip("huggingface_hub")


def client(server: Running, path: str = "") -> hub.InferenceClient:
    return hub.InferenceClient(model=server.url + path, token="none", timeout=20)


@pytest.mark.parametrize("path", ["", "/embed", "/pipeline/feature-extraction?model=embedder"])
def test_feature_extraction(encoders: Running, path: str) -> None:
    found = client(encoders, path).feature_extraction(DOCUMENTS, normalize=True, truncate=True)
    assert same(found, expected_vectors(encoders, *DOCUMENTS))
    asked = client(encoders, path).feature_extraction(QUERY, prompt_name="query", truncation_direction="left")
    assert same(asked, expected_vectors(encoders, f"q: {QUERY}"))


@pytest.mark.parametrize("path", ["", "/similarity", "/pipeline/sentence-similarity"])
def test_sentence_similarity(encoders: Running, path: str) -> None:
    found = client(encoders, path).sentence_similarity(QUERY, DOCUMENTS)
    query, *documents = expected_vectors(encoders, QUERY, *DOCUMENTS)
    assert np.allclose(found, np.array(documents) @ query, atol=1e-5)


@pytest.mark.parametrize("path", ["/?model=classifier", "/pipeline/text-classification?model=classifier"])
def test_text_classification(encoders: Running, path: str) -> None:
    found = client(encoders, path).text_classification("a cat")
    assert {one.label for one in found} == {"low", "mid", "high"}
    assert sum(one.score for one in found) == pytest.approx(1)
    [best] = client(encoders, path).text_classification("a cat", top_k=1, function_to_apply="sigmoid")
    assert best.label == found[0].label and best.score != found[0].score


@pytest.mark.parametrize("path", ["/?model=nli", "/pipeline/zero-shot-classification?model=nli"])
def test_zero_shot_classification(encoders: Running, path: str) -> None:
    asked = client(encoders, path)
    found = asked.zero_shot_classification("a cat", ["animal", "water"])
    assert {one.label for one in found} == {"animal", "water"}
    assert sum(one.score for one in found) == pytest.approx(1)
    several = asked.zero_shot_classification(
        "a cat", ["animal", "water"], multi_label=True, hypothesis_template="It is {}."
    )
    assert len(several) == 2


@pytest.mark.parametrize("path", ["/?model=tokens", "/pipeline/token-classification?model=tokens"])
def test_token_classification(encoders: Running, path: str) -> None:
    text = "a cat and the sea"
    for strategy in (None, "none", "simple", "max"):
        found = client(encoders, path).token_classification(text, aggregation_strategy=strategy)
        for one in found:
            assert one.word == text[one.start : one.end]
            assert one.entity in ("B-PER", "I-PER") if strategy == "none" else one.entity_group == "PER"
    assert client(encoders, path).token_classification(text, ignore_labels=["O", "PER"]) == []


def test_a_refusal_says_why(encoders: Running) -> None:
    with pytest.raises(hub.errors.HfHubHTTPError, match="prompts of this model are: passage"):
        client(encoders, "/embed").feature_extraction("a", prompt_name="poem")
