"""GLiNER on DeBERTa v3, as most of its checkpoints are: entities that the package `gliner` finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from golden import FOLDER
from headrace import LLM
from headrace.errors import UnsupportedModel
from headrace.models.registry import find_model
from headrace.weights.gliner import encoder_config

GLINER = FOLDER / "gliner"
NAMES = sorted(path.parent.name for path in GLINER.glob("*/golden.json"))


def check(folder: Path, golden: dict[str, Any]) -> None:
    with LLM(folder, cache_dir=None) as llm:
        for least, expected in golden["found"].items():
            found = llm.entities(golden["texts"], golden["labels"], threshold=float(least))
            places = [[(one.start, one.end, one.label, one.text) for one in several] for several in found]
            assert places == [
                [(one["start"], one["end"], one["label"], one["text"]) for one in several]
                for several in expected
            ]
            scores = [one.score for several in found for one in several]
            assert scores == pytest.approx(
                [one["score"] for several in expected for one in several], abs=1e-4
            )


@pytest.mark.parametrize("name", NAMES)
def test_entities_equal_those_of_the_package(name: str) -> None:
    check(GLINER / name, json.loads((GLINER / name / "golden.json").read_text()))


def test_a_vocabulary_that_no_file_tells_is_that_of_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "span"
    shutil.copytree(GLINER / "span", folder)
    settings = json.loads((folder / "gliner_config.json").read_text())
    del settings["encoder_config"]["vocab_size"]
    settings["vocab_size"] = -1
    (folder / "gliner_config.json").write_text(json.dumps(settings))
    check(folder, json.loads((folder / "golden.json").read_text()))


def test_a_deberta_v3_that_is_only_named_is_known() -> None:
    config = encoder_config({"model_name": "microsoft/deberta-v3-large", "vocab_size": 128_004}, None)
    model: Any = find_model(config).config
    assert (model.layers, model.hidden, model.heads, model.vocabulary) == (24, 1024, 16, 128_004)
    assert model.span == 256 and model.normed and model.shared and not model.positions
    assert encoder_config({"model_name": "microsoft/mdeberta-v3-base"}, None)["vocab_size"] == 251_000
    with pytest.raises(UnsupportedModel, match="only names its encoder, 'answerdotai/ModernBERT-base'"):
        encoder_config({"model_name": "answerdotai/ModernBERT-base"}, None)
