"""The models inside the package: complete, small, with true cards, and able to do their jobs."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from headrace import LLM
from headrace.engine.load import prepare
from headrace.engine.model_card import about, card
from headrace.engine.options import EngineOptions
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.shipped import SHIPPED_DEFAULT, SHIPPED_FOLDER, list_shipped

MODELS = sorted(list_shipped())
MOST_BYTES = 60_000_000
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
GENERATES = {"chat_template.jinja", "generation_config.json"}
OPENING = "The old captain looked at the boy and said,"
COMMON_WORDS = re.compile(
    r"\b(a|and|for|had|he|her|his|i|in|it|of|she|that|the|to|was|with|you)\b", re.IGNORECASE
)
TABLE = "Table players (name, team, home city, points)"


def test_all_together_are_small() -> None:
    assert SHIPPED_DEFAULT in MODELS
    assert sum(path.stat().st_size for path in SHIPPED_FOLDER.rglob("*")) < MOST_BYTES


@pytest.mark.parametrize("name", MODELS)
def test_each_is_complete(name: str) -> None:
    names = {path.name for path in (SHIPPED_FOLDER / name).iterdir()}
    assert names >= FILES
    assert names >= GENERATES or "modules.json" in names or "head.safetensors" in names


@pytest.mark.parametrize("name", MODELS)
def test_the_card_states_the_facts(name: str) -> None:
    folder = SHIPPED_FOLDER / name
    text = card(folder) or ""
    config = json.loads((folder / "config.json").read_text())
    with open_checkpoint(folder) as checkpoint:
        parameters = sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values())
    for fact in (f"{parameters:,} parameters", f"{config['max_position_embeddings']:,} tokens", "Limits"):
        assert fact in text
    assert about(folder) in " ".join(text.split())


@pytest.mark.parametrize("name", MODELS)
def test_the_tokenizer_returns_any_text(name: str) -> None:
    tokenizer = Tokenizer.from_file(str(SHIPPED_FOLDER / name / "tokenizer.json"))
    text = 'He said: "Well—42?"\n\n\tĳ 漢字 🙂  end '
    encoding = tokenizer.encode(text)
    assert encoding.tokens[0] == "<s>"
    assert tokenizer.decode(encoding.ids) == text


@pytest.mark.parametrize("name", [SHIPPED_DEFAULT, "novelette"])
def test_stories_are_made_of_words(name: str) -> None:
    """A guard against shipping an untrained or damaged file."""
    with LLM(name, cache_dir=None) as llm:
        text = llm.generate(OPENING, max_tokens=48, temperature=0.7, seed=1).text
    assert len(COMMON_WORDS.findall(text)) >= len(text.split()) / 4 > 0


def test_the_default_model_does_its_jobs(tmp_path: Path) -> None:
    with LLM(cache_dir=None) as llm:
        command = llm.chat([{"role": "user", "content": "extract a gzipped tar archive"}]).text
        asked = f"{TABLE}\nWhat is the home city of Ada Byron?"
        statement = llm.chat([{"role": "user", "content": asked}]).text
    assert command.startswith("tar ")
    with sqlite3.connect(":memory:") as database:
        database.execute('CREATE TABLE players (name, team, "home city", points)')
        database.execute("INSERT INTO players VALUES ('Ada Byron', 'Engines', 'London', 7)")
        assert database.execute(statement).fetchall() == [("London",)]


@pytest.mark.skipif("nano" not in MODELS, reason="no draft model ships")
@pytest.mark.parametrize(
    ("options", "draft"),
    [
        ({}, "nano"),
        ({"speculation": "off"}, None),
        ({"draft_layers": 2}, "mini"),
        ({"executor": "reference"}, None),
    ],
)
def test_the_default_model_comes_with_its_draft(options: dict[str, Any], draft: str | None) -> None:
    with prepare(None, EngineOptions(**options)) as prepared:
        assert (prepared.draft.name if prepared.draft is not None else None) == draft
    with prepare("novelette", EngineOptions()) as prepared:
        assert prepared.draft is None
