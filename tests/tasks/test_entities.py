"""Entities by labels that come with the text: places in the text, the best spans, what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace import LLM
from headrace.errors import (
    ContextLengthExceeded,
    CorruptFile,
    HeadraceError,
    InvalidRequest,
    NumericalError,
)
from headrace.inference.keywords import new_call
from headrace.tasks.entity_finders import spans
from headrace.tasks.entity_finders.finder import Units
from headrace.tasks.entity_finders.spans import Span, check_finite, gathered, keys_of
from headrace.tasks.entity_finders.tagger import END, INSIDE, START, best_spans, label_frame, token_units
from headrace.tasks.entity_windows import LongTexts, TextLimits, pieces
from headrace.tasks.task_limits import WindowBudget
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
        (TEXT, [], 0.5, InvalidRequest, "has 0 entries"),
        (TEXT, "person", 0.5, InvalidRequest, "must be a list of texts"),
        (TEXT, ["person", " "], 0.5, InvalidRequest, "has an empty label"),
        (TEXT, ["person", "person"], 0.5, InvalidRequest, "names one twice: person"),
        (TEXT, None, 0.5, InvalidRequest, "give labels"),
        (TEXT, [str(i) for i in range(1001)], 0.5, InvalidRequest, "1,001 entries"),
        (TEXT, [f"a long label {i}" for i in range(999)], 0.5, InvalidRequest, "fewer or shorter ones"),
        ([], ["person"], 0.5, InvalidRequest, "input has 0 entries"),
        ([TEXT] * 2049, ["person"], 0.5, InvalidRequest, "input has 2,049 entries"),
        (TEXT, ["person"], 1.0, InvalidRequest, "threshold is 1.0"),
        (TEXT, ["person"], math.nan, InvalidRequest, "threshold is nan"),
        (TEXT * 200, ["person"], 0.5, ContextLengthExceeded, "tokens"),
        ("\ud800", ["person"], 0.5, InvalidRequest, "lone surrogate at character 0"),
    ],
)
def test_what_means_nothing_is_refused(
    tagger: LLM,
    texts: str | list[str],
    labels: list[str] | None,
    threshold: float,
    error: type[HeadraceError],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        tagger.entities(texts, labels, threshold=threshold)


def test_a_model_without_a_head_is_no_tagger() -> None:
    with LLM("novelette", cache_dir=None) as llm, pytest.raises(InvalidRequest, match="cannot find entities"):
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


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"window": 0}, "window"),
        ({"stride": -1}, "stride"),
        ({"window": 8, "stride": 8}, "stride"),
        ({"stride": 4, "truncate": True}, "truncate"),
    ],
)
def test_windows_that_mean_nothing_are_refused(tagger: LLM, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        tagger.entities(TEXT, ["person"], **options)
    assert error.value.param == param


def test_a_long_text_is_read_in_windows_or_cut(tagger: LLM) -> None:
    text = f"{TEXT} and then some more. " * 30
    with pytest.raises(ContextLengthExceeded, match="give stride to read it in windows"):
        tagger.entities(text, ["person"], threshold=0.3)
    [cut] = tagger.entities(text, ["person"], threshold=0.3, truncate=True)
    [whole] = tagger.entities(text, ["person"], threshold=0.3, stride=16)
    assert cut and max(one.end for one in cut) < max(one.end for one in whole) > len(text) * 0.9
    assert all(one.text == text[one.start : one.end] for one in whole)
    assert all(one.end <= other.start for one, other in pairwise(whole))
    short = tagger.entities(TEXT, ["person"], threshold=0.3)
    assert tagger.entities(TEXT, ["person"], threshold=0.3, stride=16) == short


def test_windows_share_units_and_cover_all() -> None:
    units = Units(list(range(100)), list(range(0, 101, 2)), [(i, i + 1) for i in range(50)])
    call = new_call()
    found = pieces(units, 0, TextLimits(20, 5, 8), LongTexts(stride=4), call)
    assert found[0] == (0, 8) and found[-1][1] == 50
    assert all(end - 2 == start for (_, end), (start, _) in pairwise(found))
    assert pieces(units, 0, TextLimits(20, 5, None), LongTexts(window=10), call)[0] == (0, 5)
    assert pieces(units, 0, TextLimits(200, 5, None), LongTexts(), call) == [(0, 50)]
    assert not call.warnings
    assert pieces(units, 3, TextLimits(20, 5, None), LongTexts(truncate=True), call) == [(0, 10)]
    assert pieces(units, 3, TextLimits(20, 5, None), LongTexts(window=21), call)[0] == (0, 10)
    wide = Units(list(range(9)), [0, 1, 8, 9], [(0, 1), (1, 8), (8, 9)])
    assert pieces(wide, 4, TextLimits(3, 5, None), LongTexts(stride=0), call) == [(0, 1), (2, 3)]
    said = [warning.message for warning in call.warnings]
    assert "text 3 has 100 tokens, the model reads 20 tokens of a text: it was cut after 20 tokens" in said[0]
    assert "21 tokens of text 3 do not fit at once, 20 do" in said[1]
    assert "a word of text 4 has more tokens than a window, 3" in said[2]


def test_scores_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(NumericalError, match="damaged"):
        check_finite(np.array([0.5, np.nan], np.float32))


def test_more_candidates_than_any_threshold_should_give_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MAX_CANDIDATES", 10)
    first = np.arange(6)
    scores = np.linspace(0.5, 0.9, 6, dtype=np.float32)
    by_label = [(label, keys_of(first, first), scores) for label in range(4)]
    assert len(gathered(by_label, every_label=False)) == 6
    with pytest.raises(InvalidRequest, match="more than 10 spans of one text are above"):
        gathered(by_label, every_label=True)


def test_windows_have_a_budget_of_tokens(tagger: LLM) -> None:
    """A window at each token would be as many times the text as a window has tokens."""
    units = Units(list(range(30_000)), list(range(30_001)), [(i, i + 1) for i in range(30_000)])
    limits, call = TextLimits(200, 56, None), new_call()
    assert len(pieces(units, 0, limits, LongTexts(stride=32), call)) < 200
    with pytest.raises(InvalidRequest, match="more than 1,000,000 tokens, those that they share") as refused:
        pieces(units, 0, limits, LongTexts(stride=199), call)
    assert refused.value.param == "stride"
    budget = WindowBudget()
    pieces(units, 0, limits, LongTexts(stride=32), call, budget)
    assert 30_000 < budget.tokens < 60_000
    with pytest.raises(InvalidRequest, match="send less text at once"):
        for index in range(100):
            pieces(units, index, limits, LongTexts(stride=32), call, budget)
    with pytest.raises(InvalidRequest, match="windows have more than 1,000,000 tokens"):
        tagger.entities(["a b " * 20_000], ["person"], window=60, stride=59)
