"""Entities by labels that come with the text: places in the text, the best spans, what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace import LLM
from headrace.errors import (
    ContextLengthExceeded,
    CorruptFile,
    HeadraceError,
    InvalidRequest,
    UnsupportedModel,
)
from headrace.tasks.entity_finders.spans import Span
from headrace.tasks.entity_finders.tagger import END, INSIDE, START, best_spans, label_frame, token_units
from headrace.weights.tagger_head import read_tagger_head
from tiny import tiny_model

TEXT = "Ann Lee saw Rome, in Ørsted"
HIDDEN, WIDTH = 32, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger with random weights; it finds much."""
    path = tiny_model(tmp_path_factory.mktemp("tagger"), chat_template=None)
    config = json.loads((path / "config.json").read_text()) | {"is_causal": False}
    (path / "config.json").write_text(json.dumps(config))
    marks = {"label_mark": "<s>", "text_mark": "</s>", "longest_span": 8}
    (path / "tagger.json").write_text(json.dumps(marks))
    random = np.random.default_rng(0)
    head = {
        name: 0.3 * random.standard_normal((3 * WIDTH, config["hidden_size"]), np.float32)
        for name in ("token.weight", "label.weight")
    }
    save_file(head | {"bias": np.ones(3, np.float32)}, path / "head.safetensors")
    return path


@pytest.fixture(scope="module")
def tagger(folder: Path) -> Iterator[LLM]:
    with LLM(folder, cache_dir=None) as loaded:
        yield loaded


def test_entities_are_pieces_of_the_text(tagger: LLM) -> None:
    [found, nothing] = tagger.entities([TEXT, ""], ["person", "place"], threshold=0.3)
    assert found and nothing == []
    for entity in found:
        assert entity.text == TEXT[entity.start : entity.end] != ""
        assert entity.label in ("person", "place") and 0.3 < entity.score < 1
    ends = [0, *(entity.end for entity in found)]
    assert all(end <= entity.start for end, entity in zip(ends, found, strict=False))
    assert tagger.entities(TEXT, ["person", "place"], threshold=0.3) == [found]
    most = tagger.entities(TEXT, ["person", "place"], threshold=0.9)[0]
    assert all(entity.score > 0.9 for entity in most)


def test_a_text_cannot_pose_as_a_label(tagger: LLM) -> None:
    frame = label_frame(tagger.model.tokenizer, ["x"], "<s>", "</s>")
    units = token_units(tagger.model.tokenizer, "a<s>b</s>")
    assert [frame.before[mark] for mark in frame.marks] == [0]
    assert frame.before[-1] == 1 and not {0, 1} & set(units.ids)
    assert units.characters == [(i, i + 1) for i in range(9)]


def test_the_likeliest_spans_that_do_not_overlap_win() -> None:
    chances = np.zeros((6, 2, 3), np.float32)
    for first, last, label, chance in ((0, 1, 0, 0.9), (1, 2, 1, 0.8), (4, 4, 1, 0.7)):
        chances[first, label, START] = chances[last, label, END] = chance
        chances[first : last + 1, label, INSIDE] = chance
    found = best_spans(chances, 0.5, 8)
    assert [(span.first, span.last, span.label) for span in found] == [(0, 1, 0), (4, 4, 1)]
    assert found[0].score == pytest.approx(0.9)
    assert best_spans(chances, 0.75, 8) == found[:1]
    assert best_spans(chances, 0.5, 1) == [Span(4, 4, 1, pytest.approx(0.7))]


@pytest.mark.parametrize(
    ("texts", "labels", "threshold", "error", "said"),
    [
        (TEXT, [], 0.5, InvalidRequest, "give a list of words"),
        (TEXT, "person", 0.5, InvalidRequest, "give a list of words"),
        (TEXT, ["person", " "], 0.5, InvalidRequest, "give a list of words"),
        (TEXT, ["person", "person"], 0.5, InvalidRequest, "names one twice: person"),
        (TEXT, ["person"], 1.0, InvalidRequest, "threshold is 1.0"),
        (TEXT * 200, ["person"], 0.5, ContextLengthExceeded, "tokens"),
        ("\ud800", ["person"], 0.5, InvalidRequest, "lone surrogate at character 0"),
    ],
)
def test_what_means_nothing_is_refused(
    tagger: LLM, texts: str, labels: list[str], threshold: float, error: type[HeadraceError], said: str
) -> None:
    with pytest.raises(error, match=said):
        tagger.entities(texts, labels, threshold=threshold)


def test_a_model_without_a_head_is_no_tagger() -> None:
    with LLM("novelette", cache_dir=None) as llm, pytest.raises(UnsupportedModel, match=r"no tagger\.json"):
        llm.entities(TEXT, ["person"])


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ({"bias": np.ones(3, np.float32)}, "has no label.weight, token.weight"),
        (
            {
                "bias": np.ones(2, np.float32),
                "token.weight": np.ones((6, 4), np.float32),
                "label.weight": np.ones((6, 4), np.float32),
            },
            "must be",
        ),
    ],
)
def test_a_broken_head_says_what_is_wrong(
    folder: Path, tmp_path: Path, head: dict[str, np.ndarray], said: str
) -> None:
    shutil.copy(folder / "tagger.json", tmp_path)
    save_file(head, tmp_path / "head.safetensors")
    with pytest.raises(CorruptFile, match=said):
        read_tagger_head(tmp_path)
