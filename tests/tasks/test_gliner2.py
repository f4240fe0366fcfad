"""GLiNER 2 checkpoints: the entities and classes that the package `gliner2` finds, and what is refused."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import running_server
from safetensors.numpy import save_file

from golden import FOLDER
from headrace import LLM
from headrace.errors import (
    ContextLengthExceeded,
    CorruptFile,
    HeadraceError,
    InvalidRequest,
    UnsupportedModel,
)
from headrace.loading.export import Export
from headrace.tasks.entities import Entity, finder_of
from headrace.tasks.entity_finders.gliner2 import word_places
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.safetensors.reader import SafetensorsFile

GLINER2 = FOLDER / "gliner2"
NAMES = sorted(path.parent.name for path in GLINER2.glob("*/golden.json"))
Found = tuple[int, int, str, float]


def golden_of(name: str) -> dict[str, Any]:
    return json.loads((GLINER2 / name / "golden.json").read_text())


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint in float32, as the package computes; it is stored in bfloat16, which has all bits."""
    target = tmp_path_factory.mktemp("gliner2") / name
    shutil.copytree(GLINER2 / name, target)
    save_file(widened(target), target / "model.safetensors")
    return target


def widened(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    with SafetensorsFile(folder / "model.safetensors") as file:
        return {name: file.float32(info) for name, info in file.tensors.items()}


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LLM]:
    with LLM(folder, cache_dir=None, quantization="keep") as llm:
        yield llm


def wanted(text: str, by_label: dict[str, list[dict[str, Any]]]) -> list[Found]:
    """The best spans that do not overlap, as the package chooses them of one label; without the full stop
    that it adds to a text."""
    spans = [(one, label) for label, several in by_label.items() for one in several]
    kept: list[Found] = []
    for one, label in sorted(spans, key=lambda span: -span[0]["confidence"]):
        if all(one["end"] <= start or end <= one["start"] for start, end, *_ in kept):
            kept.append((one["start"], one["end"], label, one["confidence"]))
    return sorted(
        (start, min(end, len(text)), label, score) for start, end, label, score in kept if start < len(text)
    )


def check(found: Sequence[Entity], expected: Sequence[Found]) -> None:
    assert [(one.start, one.end, one.label) for one in found] == [one[:3] for one in expected]
    assert [one.score for one in found] == pytest.approx([one[3] for one in expected], abs=1e-4)


def test_entities_of_one_label_are_those_of_the_package(name: str, model: LLM) -> None:
    golden = golden_of(name)
    for label, texts in golden["of_one_label"].items():
        found = model.entities(golden["texts"], [label], threshold=0.3)
        for text, mine, theirs in zip(golden["texts"], found, texts, strict=True):
            check(mine, wanted(text, theirs))


def test_entities_of_several_labels_are_those_of_the_package(name: str, model: LLM) -> None:
    golden = golden_of(name)
    for least, texts in golden["found"].items():
        found = model.entities(golden["texts"], golden["labels"], threshold=float(least))
        assert any(found)
        for text, mine, theirs in zip(golden["texts"], found, texts, strict=True):
            check(mine, wanted(text, theirs))


def test_classes_are_those_of_the_package(name: str, model: LLM) -> None:
    golden = golden_of(name)
    for several, kind in ((False, "softmax"), (True, "sigmoid")):
        found = model.zero_shot(golden["texts"], golden["labels"], multi_label=several)
        for mine, theirs in zip(found, golden["classes"][kind], strict=True):
            assert mine.scores == pytest.approx(theirs, abs=1e-4)
            assert mine.label == golden["labels"][int(np.argmax(theirs))]


def test_the_package_finds_the_same(folder: Path, model: LLM) -> None:
    package = pytest.importorskip("gliner2", reason="the package gliner2 is not installed")
    witness = package.GLiNER2.from_pretrained(str(folder), local_files_only=True)
    for text in ("Ann's e-mail: ann@b.org, नमस्ते", "İstanbul", "www.a.b/c @ann x_y-z"):
        for label in ("place", "a name"):
            asked = {"threshold": 0.2, "include_confidence": True, "include_spans": True}
            theirs = witness.extract_entities(text, [label], **asked)["entities"]
            [mine] = model.entities([text], [label], threshold=0.2)
            check(mine, wanted(text, theirs))


def test_it_finds_entities_and_classifies_by_labels_alone(model: LLM) -> None:
    assert model.model.tasks == ("entities", "zero_shot")
    with pytest.raises(InvalidRequest, match="cannot classify texts, it can find entities by labels and"):
        model.classify("a")
    with pytest.raises(InvalidRequest, match="give labels"):
        model.entities("a")
    assert model.entities(["", " "], ["x"]) == [[], []]
    [found] = model.zero_shot("", ["x", "y"])
    assert found.scores == pytest.approx((0.5, 0.5), abs=0.5)


def test_a_mark_in_a_label_or_a_text_is_text(model: LLM) -> None:
    finder = finder_of(model.model)
    tokenizer = model.model.tokenizer
    marks = ("[P]", "[E]", "[L]", "[SEP_TEXT]")
    ids = finder.units(tokenizer, "a [E] b [SEP_TEXT]").ids
    assert not any(tokenizer.id_of(mark) in ids for mark in marks)
    frame = finder.frame(tokenizer, ["[P] a", "[E]"])
    counts = {mark: sum(one == tokenizer.id_of(mark) for one in frame.before) for mark in marks}
    assert counts == {"[P]": 1, "[E]": 2, "[L]": 0, "[SEP_TEXT]": 1}


def test_long_texts_are_refused_cut_or_read_in_windows(model: LLM) -> None:
    text = "John lives in Berlin. " * 20
    with pytest.raises(ContextLengthExceeded, match="give stride to read it in windows"):
        model.entities(text, ["person"])
    [whole] = model.entities(text, ["person"], threshold=0.05, stride=8)
    [cut] = model.entities(text, ["person"], threshold=0.05, truncate=True)
    assert max((one.end for one in whole), default=0) > max((one.end for one in cut), default=0)
    with pytest.raises(ContextLengthExceeded, match="beside the labels: shorten it"):
        model.zero_shot(text, ["x", "y"])
    [found] = model.zero_shot(text, ["x", "y"], truncate=True)
    assert sum(found.scores) == pytest.approx(1.0)
    with pytest.raises(InvalidRequest, match="give fewer or shorter ones"):
        model.zero_shot("a", [f"label {number}" for number in range(100)])


def test_over_http(model: LLM) -> None:
    golden = golden_of(NAMES[0])
    with running_server(model.model, offline=True) as server:
        body: dict[str, Any] = {"input": golden["texts"], "labels": golden["labels"], "threshold": 0.3}
        entities = server.http().post("/v1/entities", json=body).json()["data"]
        del body["threshold"]
        classes = server.http().post("/v1/classify", json=body).json()["data"]
    found = model.entities(golden["texts"], golden["labels"], threshold=0.3)
    assert [[one["text"] for one in data["entities"]] for data in entities] == [
        [one.text for one in several] for several in found
    ]
    assert [one["label"] for one in classes] == [
        one.label for one in model.zero_shot(golden["texts"], golden["labels"])
    ]


def changed(target: Path, **fields: Any) -> Path:
    """A copy of a checkpoint with other settings; None removes one."""
    shutil.copytree(GLINER2 / "lstm", target)
    settings = json.loads((target / "config.json").read_text()) | fields
    settings = {name: value for name, value in settings.items() if value is not None}
    (target / "config.json").write_text(json.dumps(settings))
    return target


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"architecture": "boundary"}, UnsupportedModel, "architecture is 'boundary': of GLiNER 2 'span' is"),
        ({"counting_layer": "count_lstm_moe"}, UnsupportedModel, "counting_layer is 'count_lstm_moe'"),
        ({"counting_layer": "count_lstm_v2"}, CorruptFile, "no tensor 'count_embed.transformer"),
        ({"token_pooling": "sum"}, UnsupportedModel, "token_pooling is 'sum'"),
        ({"max_width": 0}, CorruptFile, "max_width"),
    ],
)
def test_settings_that_are_not_computed_here_are_refused(
    tmp_path: Path, fields: dict[str, Any], error: type[HeadraceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        LLM(changed(tmp_path / "m", **fields), cache_dir=None)


def test_a_checkpoint_without_its_encoders_config_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "m")
    shutil.rmtree(folder / "encoder_config")
    with pytest.raises(UnsupportedModel, match=r"has no encoder_config/config\.json: fetch the whole model"):
        LLM(folder, cache_dir=None)


def test_a_damaged_head_is_refused(tmp_path: Path) -> None:
    folder = changed(tmp_path / "m")
    tensors = widened(folder)
    name = "count_pred.2.bias"
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, folder / "model.safetensors")
    with pytest.raises(CorruptFile, match="not finite"):
        LLM(folder, cache_dir=None)
    save_file(tensors | {"more": np.ones(1, np.float32)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="'more'"):
        LLM(folder, cache_dir=None)
    save_file(
        {name: one for name, one in tensors.items() if "span_rep" in name}, folder / "model.safetensors"
    )
    with pytest.raises(CorruptFile, match=r"has no tensors encoder\.\*"):
        LLM(folder, cache_dir=None)


def test_it_is_not_converted_without_its_head(tmp_path: Path) -> None:
    folder = GLINER2 / "lstm"
    with open_checkpoint(folder) as checkpoint:
        export = Export(checkpoint=checkpoint, path=folder, name="tiny", type="bf16", threads=1)
        with pytest.raises(UnsupportedModel, match="GLiNER checkpoint with its head"):
            export.to_folder(tmp_path / "out", lambda done, total: None)


_OF_THE_PACKAGE = re.compile(
    r"(?:https?://\S+|www\.\S+)|[a-z0-9._%+-]+@[a-z0-9.-]+\.[a-z]{2,}|@[a-z0-9_]+|\w+(?:[-_]\w+)*|\S",
    re.IGNORECASE,
)


def test_words_are_those_of_the_package() -> None:
    parts = [
        "a",
        "B9",
        "é",
        "\u212a",
        "@",
        "@",
        ".",
        "-",
        "_",
        "+",
        " ",
        "co",
        "www.",
        "http://",
        "x.yz",
        "日",
    ]
    drawn = random.Random(7)
    for _ in range(20_000):
        text = "".join(drawn.choices(parts, k=drawn.randint(1, 14)))
        assert word_places(text) == [found.span() for found in _OF_THE_PACKAGE.finditer(text)], text


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        ("", "a.", "@"),
        pytest.param("", "a.", "", marks=pytest.mark.nightly),
        pytest.param("", "a@", "", marks=pytest.mark.nightly),
        pytest.param("@", "a.", "", marks=pytest.mark.nightly),
    ],
)
def test_the_time_of_words_does_not_grow_with_the_square(before: str, text: str, after: str) -> None:
    """100 times as long: with the package's pattern it takes an hour."""
    text = before + text * 10**6 + after
    assert word_places(text)[-1][1] == len(text)
