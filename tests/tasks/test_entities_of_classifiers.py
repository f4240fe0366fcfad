"""Entities by models that classify tokens: their own labels, of which some can be asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from in_process import running_server

from head_models import head_model
from headrace import LLM
from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.inference.keywords import new_call
from headrace.tasks.entities import extract_entities

LABELS = {"0": "O", "1": "B-PER", "2": "I-PLACE"}
TEXTS = ["Ann Lee saw Rome, in the rain", "", "don't xyz abc defghi jk lmno"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = head_model(tmp_path_factory.mktemp("tokens"), "heads/modernbert_tokens", id2label=LABELS)
    with LLM(folder, cache_dir=None) as llm:
        yield llm


def test_all_entities_or_those_of_a_label(model: LLM) -> None:
    found = model.entities(TEXTS)
    assert found[1] == [] and {one.label for one in found[0] + found[2]} == {"PER", "PLACE"}
    assert all(one.text == TEXTS[0][one.start : one.end] != "" for one in found[0])
    for label in ("PER", "PLACE"):
        some = model.entities(TEXTS, [label])
        assert some == [[one for one in entities if one.label == label] for entities in found]
    least = sorted(one.score for one in found[0])[0]
    assert len(model.entities(TEXTS[0], threshold=least)[0]) < len(found[0])
    tokens = model.entities(TEXTS[0], ["PER"], aggregation="none")[0]
    assert {one.label for one in tokens} == {"B-PER"}


@pytest.mark.parametrize(
    ("labels", "options", "param"),
    [
        (["person"], {}, "labels"),
        (["B-PER"], {}, "labels"),
        (None, {"aggregation": "last"}, "aggregation"),
        (None, {"window": 8}, "window"),
        (None, {"stride": 10_000}, "stride"),
    ],
)
def test_what_means_nothing_is_refused(
    model: LLM, labels: list[str] | None, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        model.entities(TEXTS, labels, **options)
    assert error.value.param == param


def test_a_long_text_needs_a_stride(model: LLM) -> None:
    text = "Ann Lee saw Rome " * 50
    with pytest.raises(ContextLengthExceeded, match="stride"):
        model.entities(text)
    [found] = model.entities(text, stride=8)
    assert found and found[-1].end > model.model.context_length


def test_what_has_no_effect_is_said(model: LLM) -> None:
    call = new_call()
    found = model._thread.run(
        extract_entities(model.runner, None, TEXTS, None, call, flat_ner=False, multi_label=True)
    )
    assert found == model.entities(TEXTS)
    assert [warning.param for warning in call.warnings] == ["flat_ner", "multi_label"]


def test_over_http(model: LLM) -> None:
    with running_server(model.model, offline=True) as server:
        reply = server.http().post("/v1/entities", json={"input": TEXTS, "aggregation": "simple"}).json()
        refused = server.http().post("/v1/entities", json={"input": TEXTS, "aggregation": "last"})
    assert [[one["text"] for one in data["entities"]] for data in reply["data"]] == [
        [one.text for one in found] for found in model.entities(TEXTS)
    ]
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "aggregation"
