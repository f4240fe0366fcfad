"""GLiNER checkpoints: scores and entities as the published computation has them, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import running_server
from safetensors.numpy import load_file, save_file

from headrace import LLM
from headrace.errors import (
    ContextLengthExceeded,
    CorruptFile,
    HeadraceError,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from headrace.loading.describe import describe
from headrace.loading.export import Export
from headrace.loading.options import EngineOptions
from headrace.tasks.entities import Entity, finder_of
from headrace.weights.checkpoint import is_complete, open_checkpoint
from headrace.workers.model_spec import ModelSpec
from headrace.workers.worker_loader import WorkerLoader

pytest.importorskip("transformers", reason="make oracles installs it")
from gliner_reference import WORD, Reference, gliner_folder

TEXTS = ["John Miller lives in Berlin, since 2019.", "a", "Écoles 👩‍🚀 of Zürich-West: b_c", "two words"]
LABELS = ["person", "city name", "year"]
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("bert", {"num_rnn_layers": 0, "hidden_size": 32, "subtoken_pooling": "mean", "embed_ent_token": False}),
    ("bert", {"num_rnn_layers": 2, "subtoken_pooling": "max", "max_width": 12}),
    ("modernbert", {"subtoken_pooling": "last"}),
    ("modernbert", {"span_mode": "token_level", "model_type": "gliner_uni_encoder_token"}),
    ("bert", {"span_mode": "token_level", "model_type": "gliner_uni_encoder_token", "num_rnn_layers": 0}),
]


def middle(reference: Reference) -> float:
    """A threshold in the widest gap between the scores of the upper half."""
    scores = sorted(score for text in TEXTS for score in reference.span_scores(text, LABELS).values())
    places = range(len(scores) // 2, len(scores) * 9 // 10)
    place = max(places, key=lambda place: scores[place + 1] - scores[place])
    return (scores[place] + scores[place + 1]) / 2


def wanted(
    reference: Reference, text: str, threshold: float, *, flat: bool = True, multi: bool = False
) -> list[Entity]:
    """The greedy choice of the package `gliner`: by falling score, what overlaps is left out."""
    places = [found.span() for found in WORD.finditer(text)]
    scores = reference.span_scores(text, LABELS)
    kept: list[tuple[int, int, int]] = []
    for span in sorted(scores, key=lambda span: -scores[span]):
        if scores[span] > threshold and not any(excludes(span, other, flat, multi) for other in kept):
            kept.append(span)
    found: list[Entity] = []
    for first, last, label in sorted(kept, key=lambda span: (span[:2], -scores[span])):
        start, end = places[first][0], places[last][1]
        found.append(Entity(start, end, LABELS[label], text[start:end], scores[first, last, label]))
    return found


def excludes(one: Sequence[int], other: Sequence[int], flat: bool, multi: bool) -> bool:
    if one[:2] == other[:2]:
        return not multi
    apart = one[0] > other[1] or other[0] > one[1]
    inside = (one[0] <= other[0] and one[1] >= other[1]) or (other[0] <= one[0] and other[1] >= one[1])
    return not (apart or (inside and not flat))


def check(found: Sequence[Entity], expected: Sequence[Entity]) -> None:
    assert [(one.start, one.end, one.label, one.text) for one in found] == [
        (one.start, one.end, one.label, one.text) for one in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert math.isclose(one.score, other.score, abs_tol=1e-4)


@pytest.mark.parametrize(("kind", "changed"), KINDS)
def test_entities_are_those_of_the_published_computation(
    kind: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    folder, reference = gliner_folder(tmp_path / "model", kind, **changed)
    threshold = middle(reference)
    with LLM(folder, cache_dir=None, quantization="keep") as llm:
        for flat, multi in ((True, False), (True, True), (False, False), (False, True)):
            found = llm.entities(TEXTS, LABELS, threshold=threshold, flat_ner=flat, multi_label=multi)
            for text, mine in zip(TEXTS, found, strict=True):
                check(mine, wanted(reference, text, threshold, flat=flat, multi=multi))
        assert any(found)


@pytest.mark.parametrize(("kind", "changed"), KINDS)
def test_the_package_gliner_finds_the_same(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    gliner = pytest.importorskip("gliner", reason="the package gliner is not installed")
    folder, reference = gliner_folder(tmp_path / "model", kind, seed=3, **changed)
    threshold = middle(reference)
    # In `gliner` a word without tokens, such as a joiner of emoji, moves all later words by one.
    texts = [text.replace("\u200d", "") for text in TEXTS]
    witness = gliner.GLiNER.from_pretrained(str(folder), local_files_only=True, strict=True)
    with LLM(folder, cache_dir=None, quantization="keep") as llm:
        for flat, multi in ((True, False), (False, True)):
            mine = llm.entities(texts, LABELS, threshold=threshold, flat_ner=flat, multi_label=multi)
            theirs = witness.inference(texts, LABELS, threshold=threshold, flat_ner=flat, multi_label=multi)
            for found, other in zip(mine, theirs, strict=True):
                expected = [
                    Entity(one["start"], one["end"], one["label"], one["text"], one["score"]) for one in other
                ]
                check(found, sorted(expected, key=lambda one: (one.start, one.end, -one.score)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gliner_folder(tmp_path_factory.mktemp("gliner") / "model")[0]


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LLM]:
    with LLM(folder, cache_dir=None) as llm:
        yield llm


@pytest.mark.parametrize("mark", ["<<SEP>>", "<<ENT>>"])
def test_a_label_with_a_mark_in_it_is_refused(model: LLM, mark: str) -> None:
    with pytest.raises(InvalidRequest, match=f"has {mark} in it") as error:
        model.entities("a", ["person", f"x{mark} y"])
    assert error.value.param == "labels"


def test_a_label_without_tokens_is_refused(model: LLM) -> None:
    with pytest.raises(InvalidRequest, match="has no tokens"):
        model.entities("a", ["\u200d"])


def test_a_text_cannot_pose_as_a_label(model: LLM) -> None:
    finder = finder_of(model.model)
    units = finder.units(model.model.tokenizer, "a <<ENT>> [SEP]")
    marks = {model.model.tokenizer.id_of(mark) for mark in ("<<ENT>>", "<<SEP>>", "[SEP]", "[CLS]")}
    assert not marks & set(units.ids)
    frame = finder.frame(model.model.tokenizer, ["[SEP]", "b"])
    assert frame.before.count(3) == 0 and frame.before[0] == 2 and frame.after == [3]


def test_long_texts_are_refused_cut_or_read_in_windows(folder: Path, model: LLM) -> None:
    text = "ab cd ef gh " * 15
    with pytest.raises(ContextLengthExceeded, match="60 words and 120 tokens, the model reads 40 words and"):
        model.entities(text, LABELS)
    [cut] = model.entities(text, LABELS, threshold=0.3, truncate=True)
    [whole] = model.entities(text, LABELS, threshold=0.3, stride=8)
    assert cut and max(one.end for one in cut) <= 40 * 3 < max(one.end for one in whole)


def test_texts_together_and_alone_have_the_same_entities(model: LLM) -> None:
    texts = [text for text in TEXTS for _ in range(30)]
    together = model.entities(texts, LABELS, threshold=0.3)
    for text, found in zip(texts[::30], together[::30], strict=True):
        check(found, model.entities(text, LABELS, threshold=0.3)[0])


def test_a_worker_finds_the_same(folder: Path, model: LLM) -> None:
    spec = ModelSpec(name="tiny", model=str(folder), options=EngineOptions(cache_dir=None))
    loader = WorkerLoader(spec)
    loader.plan(None)
    loaded = loader.load(lambda done, total: None)
    try:
        assert loaded.head is not None and loaded.tasks == ("entities",)
        with running_server(loaded, offline=True) as server:
            body = {"input": TEXTS, "labels": LABELS, "threshold": 0.3}
            reply = server.http().post("/v1/entities", json=body).json()
    finally:
        loaded.close()
    expected = model.entities(TEXTS, LABELS, threshold=0.3)
    assert [[one["text"] for one in data["entities"]] for data in reply["data"]] == [
        [one.text for one in found] for found in expected
    ]


def changed(folder: Path, target: Path, **fields: Any) -> Path:
    """A copy of the checkpoint with other settings; None removes one."""
    shutil.copytree(folder, target)
    settings = json.loads((folder / "gliner_config.json").read_text()) | fields
    settings = {name: value for name, value in settings.items() if value is not None}
    (target / "gliner_config.json").write_text(json.dumps(settings))
    return target


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"span_mode": "markerV1"}, UnsupportedModel, "span_mode is 'markerV1': supported are markerV0"),
        ({"words_splitter_type": "spacy"}, UnsupportedModel, "words_splitter_type is 'spacy'"),
        ({"subtoken_pooling": "sum"}, UnsupportedModel, "subtoken_pooling is 'sum'"),
        ({"labels_encoder": "a/b"}, UnsupportedModel, "labels_encoder stands for an encoder of its own"),
        ({"labels_decoder": "a/b"}, UnsupportedModel, "labels_decoder"),
        ({"post_fusion_schema": "l2l"}, UnsupportedModel, "post_fusion_schema"),
        ({"relations_layer": "dot"}, UnsupportedModel, "relations"),
        ({"hidden_size": 26}, CorruptFile, "has the shape"),
        ({"num_rnn_layers": 0}, UnsupportedModel, "rnn.lstm"),
        ({"num_rnn_layers": 2}, CorruptFile, "no tensor 'rnn.lstm"),
        ({"encoder_config": None}, UnsupportedModel, "only names its encoder, 'tiny'.*put the config.json"),
        ({"max_width": 0}, CorruptFile, "max_width"),
        ({"ent_token": "<<E>>"}, UnsupportedModel, "has no token '<<E>>'"),
        ({"encoder_config": {"model_type": "xlnet"}}, HeadraceError, "model_type 'xlnet' is not supported"),
    ],
)
def test_settings_that_are_not_computed_here_are_refused(
    folder: Path, tmp_path: Path, fields: dict[str, Any], error: type[HeadraceError], said: str
) -> None:
    with (
        pytest.raises(error, match=said),
        LLM(changed(folder, tmp_path / "m", **fields), cache_dir=None) as llm,
    ):
        llm.entities("a b", ["person"])


def test_the_encoders_config_may_lie_beside(folder: Path, model: LLM, tmp_path: Path) -> None:
    target = changed(folder, tmp_path / "m", encoder_config=None)
    config = json.loads((folder / "gliner_config.json").read_text())["encoder_config"]
    (target / "config.json").write_text(json.dumps(config))
    with LLM(target, cache_dir=None) as llm:
        found = llm.entities(TEXTS, LABELS, threshold=0.3)
    assert found == model.entities(TEXTS, LABELS, threshold=0.3)


def test_weights_that_may_run_code_are_refused(folder: Path, tmp_path: Path) -> None:
    target = changed(folder, tmp_path / "m")
    (target / "model.safetensors").rename(target / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match=r"pytorch_model\.bin may run code .*: convert the weights"):
        LLM(target, cache_dir=None)


def test_a_damaged_head_is_refused(folder: Path, tmp_path: Path) -> None:
    target = changed(folder, tmp_path / "m")
    tensors = load_file(target / "model.safetensors")
    name = "prompt_rep_layer.3.bias"
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, target / "model.safetensors")
    with pytest.raises(CorruptFile, match="not finite"):
        LLM(target, cache_dir=None)
    save_file(tensors | {"more": np.ones(1, np.float32)}, target / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="'more'"):
        LLM(target, cache_dir=None)


def test_it_is_not_converted_without_its_head(folder: Path, tmp_path: Path) -> None:
    with open_checkpoint(folder) as checkpoint:
        export = Export(checkpoint=checkpoint, path=folder, name="tiny", type="bf16", threads=1)
        with pytest.raises(UnsupportedModel, match="GLiNER checkpoint with its head"):
            export.to_folder(tmp_path / "out", lambda done, total: None)
        with pytest.raises(UnsupportedModel, match="a GGUF file cannot hold"):
            export.to_gguf(tmp_path / "out.gguf", lambda done, total: None)


def test_a_folder_is_complete_and_shown(folder: Path) -> None:
    assert is_complete(folder)
    facts = describe(str(folder), EngineOptions(cache_dir=None))
    assert facts.layers == 2 and facts.hidden == 32
