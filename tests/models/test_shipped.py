"""The model inside the package: complete, small, readable by `transformers`, and the same there."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from tokenizers import Tokenizer

from golden import CAPACITY, Chunk, make_step, scattered_pages
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.run.reference import ReferenceExecutor
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.shipped import SHIPPED_DEFAULT, list_shipped

FOLDER = list_shipped()[SHIPPED_DEFAULT]
OPENING = "The old captain looked at the boy and said,"
GREEDY_TOKENS = 48
COMMON_WORDS = re.compile(
    r"\b(a|and|for|had|he|her|his|i|in|it|of|she|that|the|to|was|with|you)\b", re.IGNORECASE
)


def test_it_is_complete_and_small() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 4_000_000


def test_the_card_states_the_facts() -> None:
    card = (FOLDER / "README.md").read_text()
    config = json.loads((FOLDER / "config.json").read_text())
    with open_checkpoint(FOLDER) as checkpoint:
        parameters = sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values())
    for fact in (f"{parameters:,} parameters", f"{config['vocab_size']:,} tokens", "bits per byte", "Limits"):
        assert fact in card


def test_the_tokenizer_returns_any_text() -> None:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    text = 'He said: "Well—42?"\n\n\tĳ 漢字 🙂  end '
    encoding = tokenizer.encode(text)
    assert encoding.tokens[0] == "<s>"
    assert tokenizer.decode(encoding.ids) == text


def test_it_writes_words() -> None:
    """A guard against shipping an untrained or damaged file: greedy text is made of words it was taught."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    text = tokenizer.decode(_greedy(tokenizer.encode(OPENING).ids))
    assert len(COMMON_WORDS.findall(text)) >= len(text.split()) / 4 > 0


def test_transformers_computes_the_same_tokens() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    ids = tokenizer(OPENING)["input_ids"]
    assert ids == Tokenizer.from_file(str(FOLDER / "tokenizer.json")).encode(OPENING).ids
    tokens = model.generate(
        torch.tensor([ids]), do_sample=False, repetition_penalty=1.0, max_new_tokens=GREEDY_TOKENS
    )
    assert tokens[0, len(ids) :].tolist() == _greedy(ids)


def _greedy(prompt: list[int]) -> list[int]:
    with open_checkpoint(FOLDER) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        weights = {name: checkpoint.float32(name) for name in program.weights}
    executor = ReferenceExecutor(program, weights, CAPACITY)
    tokens, fresh = list(prompt), list(prompt)
    while len(tokens) < len(prompt) + GREEDY_TOKENS:
        chunk = Chunk(np.array(fresh, np.int32), len(tokens) - len(fresh), scattered_pages(0))
        fresh = [int(executor.run(make_step(chunk))[-1].argmax())]
        tokens += fresh
    return tokens[len(prompt) :]
