"""The bundled models: complete, small, documented, equal to `transformers`, and good enough at their
tasks.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from golden import CAPACITY, Chunk, make_step, scattered_pages
from headrace import LLM
from headrace.executors.reference import ReferenceExecutor
from headrace.loading.model_card import about, card
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import prepare
from headrace.models.registry import find_model
from headrace.program.record import record
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.hub.bundled import BUNDLED_DEFAULT, BUNDLED_FOLDER, list_bundled

MODELS = sorted(list_bundled())
GENERATES = [name for name in MODELS if (BUNDLED_FOLDER / name / "generation_config.json").is_file()]
MAX_BYTES = 60_000_000
ENCODERS = {"embed", "tagger"}
FILES = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
OPENING = "The old captain looked at the boy and said,"
GREEDY_TOKENS = 48
COMMON_WORDS = re.compile(
    r"\b(a|and|been|for|had|has|have|he|her|his|i|in|it|of|she|than|that|the|to|was|who|with|you)\b",
    re.IGNORECASE,
)
TABLE = "Table players (name, team, home city, points)"


def test_total_size_is_small() -> None:
    assert {BUNDLED_DEFAULT, "nano", "novelette"} <= set(GENERATES)
    assert sum(path.stat().st_size for path in BUNDLED_FOLDER.rglob("*")) < MAX_BYTES
    assert sum(path.stat().st_size for path in (BUNDLED_FOLDER / "novelette").iterdir()) < 4_000_000


@pytest.mark.parametrize("name", GENERATES)
def test_a_model_folder_is_complete(name: str) -> None:
    more = {"scope.safetensors"} if name == BUNDLED_DEFAULT else set[str]()
    assert {path.name for path in (BUNDLED_FOLDER / name).iterdir()} == FILES | more


def test_the_encoders_are_bundled() -> None:
    assert set(MODELS) - set(GENERATES) == ENCODERS


@pytest.mark.parametrize("name", MODELS)
def test_the_card_states_the_facts(name: str) -> None:
    folder = BUNDLED_FOLDER / name
    text = card(folder) or ""
    config = json.loads((folder / "config.json").read_text())
    with open_checkpoint(folder) as checkpoint:
        parameters = sum(int(np.prod(info.shape)) for info in checkpoint.tensors.values())
    for fact in (f"{parameters:,} parameters", f"{config['vocab_size']:,} tokens", "Limits"):
        assert fact in text
    assert "per byte" in text or name not in (BUNDLED_DEFAULT, "novelette")
    assert about(folder) in " ".join(text.split())


@pytest.mark.parametrize("name", MODELS)
def test_the_tokenizer_round_trips_any_text(name: str) -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / name / "tokenizer.json"))
    text = 'He said: "Well—42?"\n\n\tĳ 漢字 🙂  end '
    encoding = tokenizer.encode(text)
    assert encoding.tokens[0] == "<s>"
    assert tokenizer.decode(encoding.ids) == text


@pytest.mark.parametrize("name", [BUNDLED_DEFAULT, "novelette"])
def test_it_writes_words(name: str) -> None:
    """A guard against an untrained or damaged file: greedy text consists of words from training."""
    folder = BUNDLED_FOLDER / name
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = tokenizer.decode(_greedy(folder, tokenizer.encode(OPENING).ids))
    assert len(COMMON_WORDS.findall(text)) >= len(text.split()) / 4 > 0


@pytest.mark.parametrize("name", GENERATES)
def test_transformers_computes_the_same_tokens(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = BUNDLED_FOLDER / name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(OPENING)["input_ids"]
    assert ids == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(OPENING).ids
    tokens = model.generate(
        torch.tensor([ids]), do_sample=False, repetition_penalty=1.0, max_new_tokens=GREEDY_TOKENS
    )
    assert tokens[0, len(ids) :].tolist() == _greedy(folder, ids)


def test_the_default_model_solves_its_tasks() -> None:
    with LLM(cache_dir=None) as llm:
        command = llm.chat([{"role": "user", "content": "extract a gzipped tar archive"}]).text
        asked = f"{TABLE}\nWhat is the home city of the Lions?"
        statement = llm.chat([{"role": "user", "content": asked}]).text
    assert re.match(r"tar (-?x|--extract)", command)
    with sqlite3.connect(":memory:") as database:
        database.execute('CREATE TABLE players (name, team, "home city", points)')
        database.execute("INSERT INTO players VALUES ('Ada Byron', 'Lions', 'London', 7)")
        assert database.execute(statement).fetchall() == [("London",)]


def test_related_texts_have_close_vectors() -> None:
    tasks = ["extract a gzipped tar archive", "list all docker containers", "How many players are there?"]
    answers = ["tar --extract --gzip --file a.tar.gz", "docker ps --all", "SELECT COUNT(name) FROM players"]
    with LLM("embed", cache_dir=None) as llm:
        nearness = llm.embed(tasks) @ llm.embed(answers).T
    assert nearness.argmax(1).tolist() == [0, 1, 2]


def test_entities_are_found_by_their_labels() -> None:
    with LLM("tagger", cache_dir=None) as llm:
        (found,) = llm.entities("My name is John Miller and I live in Berlin", ["person", "location"])
    assert [(entity.text, entity.label) for entity in found] == [
        ("John Miller", "person"),
        ("Berlin", "location"),
    ]


def test_transformers_gives_the_same_vectors() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    folder, text = BUNDLED_FOLDER / "embed", "list the files of a folder"
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    with torch.no_grad():
        states = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
    expected = torch.nn.functional.normalize(states, dim=0).numpy()
    for executor, error in (("numpy", 1e-5), ("native", 0.02)):
        with LLM(folder, backend=executor, cache_dir=None) as llm:
            np.testing.assert_allclose(llm.embed(text)[0], expected, atol=error)


@pytest.mark.parametrize(
    ("options", "draft"),
    [
        ({}, None),
        ({"speculative_model": "nano"}, "nano"),
        ({"speculative_layers": 2}, "mini"),
        ({"speculative_model": "none"}, None),
        ({"speculative_model": "none", "speculative": "off"}, None),
    ],
)
def test_when_the_bundled_draft_model_is_used(options: dict[str, Any], draft: str | None) -> None:
    with prepare(None, EngineOptions(**options)) as prepared:
        assert (prepared.draft.name if prepared.draft is not None else None) == draft


@pytest.mark.parametrize(
    ("name", "weights", "format"),
    [
        (None, "auto", "int8"),
        (None, "keep", "bf16"),
        (None, "int4", "int4"),
        ("nano", "auto", "bf16"),
        ("embed", "auto", "bf16"),
        ("tagger", "auto", "bf16"),
    ],
)
def test_the_default_model_runs_in_int8(name: str | None, weights: Any, format: str) -> None:
    with prepare(name, EngineOptions(quantization=weights)) as prepared:
        found = {wanted.format for wanted in prepared.wanted}
    assert found == {format} | ({"int8"} if format == "int4" else set())  # tables keep 8 bits


def test_a_bundled_model_is_recognized_by_any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BUNDLED_FOLDER)
    with prepare("./mini", EngineOptions()) as prepared:
        assert {wanted.format for wanted in prepared.wanted} == {"int8"}


def _greedy(folder: Path, prompt: list[int]) -> list[int]:
    with open_checkpoint(folder) as checkpoint:
        program = record(find_model(checkpoint.config).define)
        weights = {name: checkpoint.float32(name) for name in program.weights}
    executor = ReferenceExecutor(program, weights, CAPACITY)
    tokens, fresh = list(prompt), list(prompt)
    while len(tokens) < len(prompt) + GREEDY_TOKENS:
        chunk = Chunk(np.array(fresh, np.int32), len(tokens) - len(fresh), scattered_pages(0))
        fresh = [int(executor.run(make_step(chunk))[-1].argmax())]
        tokens += fresh
    return tokens[len(prompt) :]
