"""A tokenizer.json that grows texts, searches them for hours or panics is refused, and what slips through
fails one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from headrace.engine.request import EngineRequest, RequestFailed
from headrace.errors import CorruptFile, HeadraceError, UnsupportedModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.tokenization import tokenizer as tokenizer_module
from headrace.tokenization.pipeline import is_bounded, read_pipeline
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer
from tiny import Running, tiny_model

Json = dict[str, Any]


def replacing(text: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def sequence(kind: str, *parts: Json) -> Json:
    return {"type": "Sequence", kind: list(parts)}


def split(pattern: str) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def template(ids: int, pieces: int) -> Json:
    special = {"id": "<s>", "ids": [0] * ids, "tokens": ["<s>"] * ids}
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * pieces
        + [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": special},
    }


BOMBS: dict[str, Json] = {
    "replacements of replacements": {
        "normalizer": sequence("normalizers", *(replacing("a", "a" * 64) for _ in range(6)))
    },
    "replacements of a rare text": {
        "normalizer": sequence("normalizers", *(replacing("qzx", "qzx" * 64) for _ in range(6)))
    },
    "20 MB in front of each text": {"normalizer": {"type": "Prepend", "prepend": "x" * 20_000_000}},
    "many tokens after each text": {"post_processor": template(10_000, 1_000)},
    "a decoder that panics": {"decoder": {"type": "Strip", "content": "a", "start": 1, "stop": 1}},
    "a decoder that grows": {"decoder": sequence("decoders", *(replacing("a", "a" * 64) for _ in range(6)))},
}


def with_parts(folder: Path, parts: Json) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return folder


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_when_the_model_is_loaded(tmp_path: Path, name: str) -> None:
    folder = with_parts(tiny_model(tmp_path), BOMBS[name])
    with pytest.raises((UnsupportedModel, CorruptFile), match=r"tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("parts", "bounded"),
    [
        (
            {"normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "_"}, replacing(" ", "_"))},
            True,
        ),
        ({"pre_tokenizer": split(r"(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)")}, True),
        ({"pre_tokenizer": split(r"(a|a|aa)*b")}, False),
        ({"pre_tokenizer": split(r"\s*\s*\s*!")}, False),
        ({"pre_tokenizer": split(r"(a)\1")}, False),
        ({"decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 0}}, True),
        ({"decoder": {"type": "Strip", "content": " ", "start": 1, "stop": 1}}, False),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, False),
        ({"normalizer": replacing("a", "b" * 100)}, False),
    ],
)
def test_what_counts_as_bounded(parts: Json, bounded: bool) -> None:
    assert is_bounded(read_pipeline(json.dumps(parts).encode())) is bounded


def test_an_unusual_tokenizer_is_tried_and_works(tmp_path: Path) -> None:
    folder = with_parts(tiny_model(tmp_path), {"normalizer": replacing("ab", "c" * 90)})
    tokenizer = load_tokenizer(folder)
    assert not tokenizer.is_bounded, "it must not be used on the event loop"
    assert len(tokenizer.encode("ab")) > 80


@pytest.mark.parametrize("use", [lambda t: t.decode([5]), lambda t: t.token_bytes(5)])
def test_a_panic_of_the_decoder_is_a_typed_error(use: Callable[[Tokenizer], object], tmp_path: Path) -> None:
    folder = with_parts(tiny_model(tmp_path), BOMBS["a decoder that panics"])
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    with pytest.raises(HeadraceError, match="decoder"):
        for token in range(200):
            use(tokenizer) if token == 0 else tokenizer.decode([token])


def test_a_panic_fails_one_request_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_parts(tiny_model(tmp_path), BOMBS["a decoder that panics"])
    monkeypatch.setattr(tokenizer_module, "check_tokenizer", lambda data, name: True)  # as if it had passed
    model = load_model(str(folder), EngineOptions(threads=1, max_num_seqs=2))
    letter = model.tokenizer.id_of("a")
    assert letter is not None
    try:
        for more in ({}, {"logprobs": 1}, {"allowed_token_ids": (letter,)}):
            params = SamplingParams(max_tokens=50, ignore_eos=True, logit_bias={letter: 100.0}, **more)  # type: ignore[arg-type]
            running = Running(model.engine, EngineRequest(prompt=(5, 6), params=params))
            [end] = running.finish().terminal
            assert isinstance(end, RequestFailed) and "decoder" in end.error.message
        assert model.engine.status().alive
    finally:
        model.close()
