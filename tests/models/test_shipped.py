"""The models inside the package: complete, small, with true cards, and trained."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer

from headrace import LLM
from headrace.engine.model_card import about, card
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


def test_stories_are_made_of_words() -> None:
    """A guard against shipping an untrained or damaged file."""
    with LLM("novelette", cache_dir=None) as llm:
        text = llm.generate(OPENING, max_tokens=48, temperature=0.7, seed=1).text
    assert len(COMMON_WORDS.findall(text)) >= len(text.split()) / 4 > 0
