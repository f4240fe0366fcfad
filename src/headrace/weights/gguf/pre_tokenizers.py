"""How texts are cut before byte-level BPE, by the name in `tokenizer.ggml.pre` of a GGUF file.

The names are those of llama.cpp's convert_hf_to_gguf.py, which recognizes a tokenizer by what it does to a
probe text; the patterns are those of the tokenizer.json files that bear these names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split


class PreTokenizer(Struct, frozen=True):
    """`build(add_prefix_space)` gives the pre-tokenizer. `whole_words`: a piece that is a token is not taken
    apart (the library's ignore_merges); `add_bos` is the default where a file does not say."""

    build: Callable[[bool], Any]
    whole_words: bool = False
    add_bos: bool = False


def _gpt2(add_prefix_space: bool) -> Any:
    return ByteLevel(add_prefix_space=add_prefix_space, use_regex=True)


def _digits_first(add_prefix_space: bool) -> Any:
    return Sequence([Digits(individual_digits=True), _gpt2(add_prefix_space)])


def _falcon(add_prefix_space: bool) -> Any:
    three = Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return Sequence([Punctuation("contiguous"), _gpt2(add_prefix_space), Digits(), three])


def _cut_by(*patterns: str) -> Callable[[bool], Any]:
    def build(add_prefix_space: bool) -> Any:
        cuts = [Split(Regex(pattern), "isolated") for pattern in patterns]
        return Sequence([*cuts, ByteLevel(add_prefix_space=add_prefix_space, use_regex=False)])

    return build


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_BIG = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA3 = _cut_by(rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}")
_QWEN2 = _cut_by(rf"{_WORD}|\p{{N}}|{_REST}")
_QWEN35 = _cut_by(
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _cut_by(
    rf"{_CASED}{_BIG}*{_SMALL}+|{_CASED}{_BIG}+{_SMALL}*|\p{{N}}|{_REST_WITH_SLASH}",
)
_GPT4O = _cut_by(
    rf"{_CASED}{_BIG}*{_SMALL}+{_CONTRACTION}?|{_CASED}{_BIG}+{_SMALL}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
)
_DEEPSEEK3 = _cut_by(
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CODER = _cut_by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")

# The models that ship with headrace: a digit is a piece, and lines end with the spaces before them.
_HEADRACE = _cut_by(
    r"'(?:s|t|re|ve|m|ll|d)\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*\n+|\s+(?!\S)|\s+",
)
OWN = "headrace"
"""A name that only headrace knows: other programs refuse the file by it, rather than cut texts otherwise."""

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: kind
    for kind, names in (
        (
            PreTokenizer(_gpt2),
            "gpt-2 phi-2 mpt olmo jais trillion exaone4 modern-bert gigachat mellum a.x-4.0 roberta-bpe "
            "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        ),
        (
            PreTokenizer(_digits_first),
            "starcoder refact command-r smollm codeshell exaone minerva-7b",
        ),
        (PreTokenizer(_falcon), "falcon"),
        (
            PreTokenizer(_LLAMA3, whole_words=True, add_bos=True),
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        ),
        (PreTokenizer(_LLAMA3), "dbrx smaug-bpe glm4 chatglm-bpe"),
        (PreTokenizer(_QWEN2), "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan"),
        (PreTokenizer(_QWEN35), "qwen35"),
        (PreTokenizer(_TEKKEN, whole_words=True, add_bos=True), "tekken"),
        (PreTokenizer(_GPT4O), "gpt-4o llama4"),
        (PreTokenizer(_DEEPSEEK3), "deepseek-v3 hunyuan-dense"),
        (PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
        (PreTokenizer(_HEADRACE), OWN),
    )
    for name in names.split()
}
