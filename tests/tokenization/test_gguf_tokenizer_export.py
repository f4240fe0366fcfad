"""Tokenizers as GGUF keys: what is read back gives the same ids, or nothing is written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headrace.errors import UnsupportedModel
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gguf.tokenizer import gguf_tokenizer
from headrace.weights.gguf.tokenizer_export import tokenizer_keys
from headrace.weights.hub.bundled import BUNDLED_FOLDER
from tokenization.conftest import real_backend

ALPHABETS = (
    "abcdefgh XYZ",
    "0123456789 ",
    "äöüéèñçß ",
    "你好世界水 ",
    "привет мир ",
    "שלום ",
    "🙂🚀👩 ",
    "'.,!?()[]{}\n\t ",
)


# The fixture cuts Qwen's texts as GPT-2's.
KINDS = {"gpt2": "gpt-2", "llama": None, "qwen2": "gpt-2", "stories260K": None}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_same_ids_come_back(shared_data: Path, name: str, kind: str | None) -> None:
    folder = shared_data / "tokenizers" / "hf" / name
    tokenizer = Tokenizer(Backend.from_str(real_backend(folder, name)))
    keys = tokenizer_keys(tokenizer, tokenizer.vocabulary_size + 7)
    assert keys.get("tokenizer.ggml.pre") == kind
    again = gguf_tokenizer(keys)
    assert again.vocabulary_size == tokenizer.vocabulary_size + 7
    source = random.Random(3)
    for _ in range(500):
        alphabet = source.choice(ALPHABETS)
        text = "".join(source.choice(alphabet) for _ in range(source.randrange(1, 40)))
        assert again.encode(text) == tokenizer.encode(text), text


def cut_otherwise(folder: Path) -> Backend:
    """The tokenizer of a bundled model, which cuts texts by a pattern of its own."""
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    cuts = pre_tokenizers.Split(Regex(r"z+|[^z]+"), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cuts, as_bytes])
    return backend


def test_what_gguf_cannot_say_is_refused(shared_data: Path) -> None:
    bert = Tokenizer(Backend.from_str(real_backend(shared_data / "tokenizers" / "hf" / "bert", "bert")))
    with pytest.raises(UnsupportedModel, match="its model is WordPiece"):
        tokenizer_keys(bert, 1)
    with pytest.raises(UnsupportedModel, match="how it cuts texts has no name in GGUF"):
        tokenizer_keys(Tokenizer(cut_otherwise(BUNDLED_FOLDER / "novelette")), 1)
