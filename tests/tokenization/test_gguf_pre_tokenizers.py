"""How texts are cut, for each name in `tokenizer.ggml.pre`: what is particular to it; nothing is lost."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from headrace.errors import UnsupportedModel
from headrace.weights.gguf.pre_tokenizers import PRE_TOKENIZERS
from headrace.weights.gguf.tokenizer import gguf_tokenizer

# name: (text, its pieces), as the patterns of llama.cpp's llama-vocab.cpp and of tokenizer.json files say.
CUTS: dict[str, list[tuple[str, str]]] = {
    "default": [("a's 12345<b>", "a|'|s| |123|45|<|b|>"), ("x+y=2 ~z", "x|+|y|=|2| |~|z")],
    "deepseek-llm": [
        ("I'm 42\n\nÀé Ωж", "I|'|m| |4|2|\n|\n|Àé| Ωж"),
        ("你好 한국. a,b  ", "你好| |한국|.| a|,|b|  "),
        ("ƻƼ １！", "ƻ|Ƽ| |１|！"),
    ],
    "jais-2": [
        ("a" + " " * 9 + "b", "a|" + " " * 8 + "| b"),
        ("a" + " " * 12 + "b", "a|" + " " * 8 + "|  | | b"),
    ],
    "ufakzeka": [("Ali'reis 12", "Ali|'reis| |1|2")],
    "qwen2": [("Ali'reis 12", "Ali|'re|is| |1|2")],
    "laguna": [("a  \n\n b", "a|  |\n\n| b")],
    "bailingmoe": [("a'LL\n\n\nb 12", "a|'LL|\n\n\n|b| |1|2"), ("a'd\n b!!\n", "a|'d|\n| b|!!\n")],
    "seed-coder": [("x = {\n}\n", "x| =| {|\n|}|\n"), ("12!", "1|2|!")],
    "exaone-moe": [("two words, 12/\n", "two words|,| |1|2|/\n")],
    "minicpm5": [("1234567 ab", "123|456|7| ab")],
    "granite-embed-multi-97m": [("HTTPServer's 1234", "HTTPServer's| |123|4")],
    "tiny_aya": [("1234567 12a", "1|234|567| |12|a")],
    "kimi-k2": [("Word汉字word 1234/\n", "Word|汉字|word| |123|4|/\n"), ("camelCase", "camel|Case")],
    "youtu": [("한국你好abc12", "한국|你好|abc|1|2"), ("a…b", "a|…|b")],
    "superbpe": [("in the year 12345, x", "in the year |12|345|, x")],
    "bloom": [("Hello, wide world! 1234", "Hello|,| wide| world|!| 1234")],
    "viking": [("Hello 12", "Hello| |1|2")],
    "chameleon": [("a IMGIMGABZ\tb", "a| |IMGIMGABZ|\t|b"), ("x!?", "x|!|?")],
    "spark2_5": [("ab1234\n\ncd", "ab|1|2|3|4|\n|\n|cd")],
    "gpt-4o": [("camelCase's 1234", "camel|Case's| |123|4")],
}
TEXT = "Mixed CASE text's, 12345 x² 你好 한국어 שלום ไทย\t\n\r\n  don't «x» a/b 🙂 IMGIMGABZ e\u0301"


def cut(name: str, text: str) -> str:
    """The pieces, in the text's own spelling."""
    pieces = PRE_TOKENIZERS[name].build(False).pre_tokenize_str(text)
    return "|".join(text[start:end] for _, (start, end) in pieces)


@pytest.mark.parametrize("name", CUTS)
def test_what_a_name_means(name: str) -> None:
    for text, pieces in CUTS[name]:
        assert cut(name, text) == pieces


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_nothing_is_lost(name: str) -> None:
    plain = PRE_TOKENIZERS["gpt-2"].build(False).pre_tokenize_str(TEXT)
    pieces = PRE_TOKENIZERS[name].build(False).pre_tokenize_str(TEXT)
    assert "".join(piece for piece, _ in pieces) == "".join(piece for piece, _ in plain)


@pytest.mark.parametrize(
    ("same", "names"),
    [
        ("qwen2", "grok-2 solar-open kormo f2llmv2"),
        ("llama3", "jina-v5-nano"),
        ("gpt-4o", "minimax-m2 kanana2 talkie"),
        ("deepseek-v3", "joyai-llm hy_v4"),
        ("starcoder", "mellum2"),
        ("gpt-2", "granite-docling"),
        ("bloom", "poro-chat gpt3-finnish"),
        ("bailingmoe", "bailingmoe2 llada-moe"),
        ("tiny_aya", "cohere2moe"),
    ],
)
def test_names_for_the_same(same: str, names: str) -> None:
    assert all(PRE_TOKENIZERS[name] is PRE_TOKENIZERS[same] for name in names.split())


def metadata(pre: str | None) -> dict[str, Any]:
    tokens = [*"ab<>Ġ0123456789", "<|end|>"]
    keys: dict[str, Any] = {
        "model": "gpt2",
        "tokens": tokens,
        "merges": ["a b"],
        "token_type": np.array([1] * (len(tokens) - 1) + [3], np.int32),
    }
    keys["tokens"].append("ab")
    keys["token_type"] = np.append(keys["token_type"], np.int32(1))
    if pre is not None:
        keys["pre"] = pre
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def test_a_file_that_names_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    named = gguf_tokenizer(metadata("default"))
    assert not caplog.records
    unnamed = gguf_tokenizer(metadata(None))
    assert "does not say how texts are cut" in caplog.text
    assert unnamed.encode("ab<ab>12") == named.encode("ab<ab>12")


@pytest.mark.parametrize("pre", ["whitespace", "gemma4", "tomorrow"])
def test_unknown_names_are_refused(pre: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"tokenizer.ggml.pre is '{pre}'.*deepseek-llm"):
        gguf_tokenizer(metadata(pre))
