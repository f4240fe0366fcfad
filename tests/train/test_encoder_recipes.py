"""The recipes of the encoders with tiny shapes and data: pairs, spans, metrics, and the files they write."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("recipes")


@pytest.fixture
def trained(made_up_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `embed` and `tagger`, trained for a few steps, with a tokenizer from the same data."""
    sources = importlib.import_module("sources")
    monkeypatch.setattr(sources, "VOCABULARY", 400)
    monkeypatch.setattr(sources, "_DRAWN_FOR_TOKENIZER", 50)
    shape = importlib.import_module("decoder").Shape(
        vocabulary=400, hidden=32, intermediate=48, layers=1, heads=2, kv_heads=1, context=160
    )
    for name, more in (("embed", {"PAIRS_PER_STEP": 4}), ("tagger", {"ROWS_PER_STEP": 4})):
        module = importlib.import_module(name)
        for constant, value in ({"SHAPE": shape, "MEASURED": 4} | more).items():
            monkeypatch.setattr(module, constant, value)
        (tmp_path / name).mkdir()
        if name == "tagger":
            shutil.copy(tmp_path / "embed/tokenizer.json", tmp_path / "tagger")
        arguments = ["--data", made_up_data, "--work", tmp_path / name, "--out", tmp_path / "out" / name]
        arguments += ["--steps", "2", "--decay", "1", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        assert module.main() == 0
    return tmp_path / "out"


def test_embed_is_the_same_in_headrace_and_in_transformers(trained: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs headrace[train]")
    import torch

    from headrace import LLM

    texts = ["list a file of kind 1", "hi", "how do I remove a user?"]
    with LLM(trained / "embed", backend="numpy", cache_dir=None) as llm:
        ours = llm.embed(texts)
    assert ours.shape == (3, 32) and np.allclose(np.linalg.norm(ours, axis=1), 1)
    model = transformers.AutoModel.from_pretrained(trained / "embed", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "embed")
    for text, mine in zip(texts, ours, strict=True):
        states = model(
            **{k: v for k, v in tokenizer(text, return_tensors="pt").items() if k != "token_type_ids"}
        )
        mean = states.last_hidden_state[0].mean(0)
        assert np.allclose(mine, (mean / mean.norm()).detach().numpy(), atol=1e-4)


def test_headrace_finds_what_the_recipe_finds(
    trained: Path, made_up_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    from headrace import LLM

    tag = importlib.import_module("tag")
    tokenizer = Tokenizer.from_file(str(trained / "tagger/tokenizer.json"))
    texts = importlib.import_module("data.entities").read_tagged(made_up_data).held_out["pii"]
    head = load_file(trained / "tagger/head.safetensors")
    tagger = tag.Tagger(importlib.import_module("tagger").SHAPE)
    tagger.decoder.start_from(trained / "tagger/model.safetensors")
    tagger.load_state_dict({name: torch.from_numpy(value) for name, value in head.items()}, strict=False)
    tagger.decoder.float()
    with torch.no_grad():
        encoded = tag.labeled(tag.HeadraceTokenizer(tokenizer, bos_id=0), texts[0].text, texts[0].labels)
        states = tagger.decoder.states(torch.tensor([encoded.ids]), torch.ones(1, 1, 1, len(encoded.ids)) > 0)
        tagger.bias += 3.0  # after so few steps it would find nothing otherwise
    # bfloat16 would give different results
    monkeypatch.setattr(torch, "autocast", lambda *given: nullcontext())
    theirs = tag.tag_texts(tagger, tokenizer, texts, torch.device("cpu"))
    _lift_bias(trained / "tagger/head.safetensors")
    with LLM(trained / "tagger", backend="numpy", cache_dir=None) as llm:
        ours = [llm.entities(text.text, text.labels)[0] for text in texts]
    with LLM(trained / "tagger", backend="numpy", cache_dir=None, pooling="none") as llm:
        [mine] = llm.embed_tokens([encoded.ids])
    assert np.allclose(mine, states[0].numpy(), atol=1e-4)
    assert any(theirs)
    assert [[(e.start, e.end, e.label) for e in found] for found in ours] == [
        [(e.start, e.end, e.label) for e in found] for found in theirs
    ]


def _lift_bias(path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    save_file(tensors | {"bias": tensors["bias"] + np.float32(3)}, path)


def test_cards_have_the_metrics(trained: Path, made_up_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="the baselines need headrace[train]")
    evaluate = importlib.import_module("evaluate_encoders")
    for name in ("embed", "tagger"):
        arguments = ["--model", trained / name, "--data", made_up_data, "--card", name]
        monkeypatch.setattr(sys, "argv", ["evaluate_encoders.py", *map(str, arguments)])
        assert evaluate.main() == 0
        card = (trained / name / "README.md").read_text()
        assert "| this model | baselines |" in card and "TF-IDF with logistic regression" in card
    config = json.loads((trained / "embed/config.json").read_text())
    assert config["is_causal"] is False and config["architectures"] == ["LlamaModel"]


def test_equal_answers_are_not_negatives(made_up_data: Path, tmp_path: Path) -> None:
    import torch

    contrast = importlib.import_module("contrast")
    batch = importlib.import_module("mixture").Batch(
        torch.zeros(6, 1, dtype=torch.long),
        torch.ones(6, 1, dtype=torch.long),
        torch.tensor([[0.0], [0], [0], [0], [1], [1]]),
    )
    fixed = torch.nn.functional.normalize(
        torch.tensor([[1.0, 0], [1, 0], [1, 0], [1, 0], [0, 1], [0, 1]]), dim=-1
    )
    contrast_vectors = contrast.vectors
    contrast.vectors = lambda *given: fixed
    try:
        assert float(contrast.contrast(None)(batch)) < 1e-6  # the first two pairs are equal, and of one group
    finally:
        contrast.vectors = contrast_vectors


def test_batches_hold_pairs_of_one_source(made_up_data: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    pairs = importlib.import_module("pairs")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "hi": 1, "there": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    drawn = pairs.Pairs(pairs.read_pair_sources(made_up_data), tokenizer)
    batches = [drawn.batch((1, step), 6, 64) for step in range(12)]
    again = drawn.batch((1, 3), 6, 64)
    assert all(
        bool((getattr(again, name) == getattr(batches[3], name)).all()) for name in ("tokens", "weights")
    )
    for batch in batches:
        assert batch.tokens.shape == batch.documents.shape and len(batch.weights) == 6
        assert (batch.weights[0::2] == batch.weights[1::2]).all()


def test_target_scores_decode_to_the_entities() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    spans, entities = importlib.import_module("spans"), importlib.import_module("data.entities")
    tag = importlib.import_module("tag")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([spans.LABEL_MARK, spans.TEXT_MARK])
    text, labels = "Ann Lee saw Rome, in Ørsted", ("person", "place")
    wanted = [
        entities.Entity(0, 7, "person"),
        entities.Entity(12, 16, "place"),
        entities.Entity(21, 27, "place"),
    ]
    encoded = tag.labeled(tag.HeadraceTokenizer(tokenizer, bos_id=0), text, labels)
    assert [encoded.ids[mark] for mark in encoded.marks] == [tokenizer.token_to_id(spans.LABEL_MARK)] * 2
    scores = spans.wanted_scores(encoded, wanted, labels)
    assert tag.entities(scores, encoded, labels) == wanted
    scores[:, 0] = np.maximum(scores[:, 0], 0.9 * scores[:, 1])  # the likelier of two labels wins
    assert tag.entities(scores, encoded, labels) == wanted


def test_entities_are_swapped() -> None:
    entities = importlib.import_module("data.entities")
    labels = ("person", "place")
    marks = (entities.Entity(0, 7, "person"), entities.Entity(12, 16, "place"))
    text = entities.Tagged("Ann Lee saw Rome.", marks, labels)
    other = entities.Tagged("Bo left", (entities.Entity(0, 2, "person"),), labels)
    mentions = entities.Mentions.of([text, other])
    random = np.random.default_rng(1)
    made = [mentions.swapped(text, 1.0, random) for _ in range(20)]
    assert {one.text for one in made} == {"Ann Lee saw Rome.", "Bo saw Rome."}
    for one in made:
        assert [one.text[e.start : e.end] for e in one.entities] == one.text[:-1].split(" saw ")
    assert mentions.swapped(text, 0.0, random) == text


def test_dropping_words_leaves_at_least_one() -> None:
    pairs = importlib.import_module("pairs")
    random = np.random.default_rng(1)
    made = {pairs.worn("what is the time", random) for _ in range(200)}
    assert "what is the time" in made and len(made) > 4
    assert all(one and set(one.split()) <= {"what", "is", "the", "time"} for one in made)
    assert {pairs.worn("hi", random) for _ in range(50)} == {"hi"}


def test_f1_and_the_lookup_baseline(made_up_data: Path) -> None:
    pytest.importorskip("sklearn", reason="the baselines need headrace[train]")
    spans, baselines = importlib.import_module("spans"), importlib.import_module("baselines")
    sources = importlib.import_module("data.entities").read_tagged(made_up_data)
    texts = sources.held_out["wnut"]
    assert texts[0].text == "Ann Lee saw Rome ." and texts[0].entities[0].end == 7
    found = baselines.seen_before(sources.learned["wnut"], texts)
    assert spans.f1(found, texts) == 1
    assert spans.f1([found[0][:1]], texts) == pytest.approx(2 / 3)
    assert spans.f1([[]], texts) == 0
    assert {len(sources.learned[name]) for name in ("pii", "btc")} == {4, 6}


@pytest.mark.parametrize("gone", ["ner/wnut17/train.conll.xz", "pii/generated_large.json.xz"])
def test_missing_data_is_named(gone: str, made_up_data: Path) -> None:
    (made_up_data / gone).unlink()
    with pytest.raises(importlib.import_module("corpus").MissingData, match=gone.rpartition("/")[2]):
        importlib.import_module("data.entities").read_tagged(made_up_data)
