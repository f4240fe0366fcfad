"""How texts are cut before byte-level BPE, by the name in `tokenizer.ggml.pre` of a GGUF file.

The names are those of llama.cpp's convert_hf_to_gguf.py, which recognizes a tokenizer by what it does to a
probe text; the patterns are those of the tokenizer.json files that bear these names. An export takes the
first name that fits, so the common ones come first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

DEFAULT = "default"
"""Of files that name none: converters wrote it before they told tokenizers apart."""


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
_GPT2_WORD = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_REST_WITH_SLASH = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_PLAIN_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_WORD = rf"{_CONTRACTION}|{_PLAIN_WORD}"
_CASED = r"[^\r\n\p{L}\p{N}]?"


def _cased_word(end: str = "", but: str = "") -> str:
    """Words that are cut where small letters are followed by capitals; `but`: of other letters."""
    big, small = (rf"[{letters}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]" for letters in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
    return rf"{_CASED}{big}*{small}+{end}|{_CASED}{big}+{small}*{end}"


_GPT4O_CUT = rf"{_cased_word(_CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}"
_QWEN2_CUT = rf"{_WORD}|\p{{N}}|{_REST}"
_THREE_DIGITS = r"\p{N}{1,3}"
_DEEPSEEK3_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-퟿]+"
# Letters with a case, up to Unicode 11: ranges of code points in hexadecimal.
_CASED_RANGES = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B
2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943
"""
_CASED_LETTERS = "".join(
    "-".join(rf"\x{{{bound}}}" for bound in pair.split("-")) for pair in _CASED_RANGES.split()
)

_DEFAULT = _cut_by(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORD, r"\p{N}+", "[0-9][0-9][0-9]")
_LLAMA3 = _cut_by(rf"{_WORD}|\p{{N}}{{1,3}}|{_REST}")
_JAIS2 = _cut_by(
    rf"{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s"
)
_QWEN2 = _cut_by(_QWEN2_CUT)
_QWEN35 = _cut_by(
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UFAKZEKA = _cut_by(rf"{_PLAIN_WORD}|\p{{N}}|{_REST}")
_LAGUNA = _cut_by(r"[^\n]+|[\n]+", _QWEN2_CUT)
_BAILING = _cut_by(
    rf"'(?i:[sdmt]|ll|ve|re)|{_PLAIN_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = _cut_by(rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}")
_EXAONE_MOE = _cut_by(
    rf"{_CONTRACTION}|{_CASED}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM5 = _cut_by(_THREE_DIGITS, rf"{_WORD}|\p{{N}}+|{_REST}")
_TEKKEN = _cut_by(rf"{_cased_word()}|\p{{N}}|{_REST_WITH_SLASH}")
_GPT4O = _cut_by(_GPT4O_CUT)
_TINY_AYA = _cut_by(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O_CUT)
_KIMI_K2 = _cut_by(
    rf"\p{{Han}}+|{_cased_word(_CONTRACTION + '?', but='&&[^' + chr(92) + 'p{Han}]')}|\p{{N}}{{1,3}}|{_REST}"
)
_YOUTU = _cut_by(
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    rf"{_cased_word(_CONTRACTION + '?')}|\p{{N}}|{_REST_WITH_SLASH}",
)
_SUPERBPE = _cut_by(r"\p{N}+", r"\d{1,3}(?=(?:\d{3})*(?!\d))")
_BLOOM_WORD = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BLOOM, _VIKING = _cut_by(_BLOOM_WORD), _cut_by(_BLOOM_WORD, r"\p{N}")
_CHAMELEON = _cut_by(
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    "[\\t\\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2_WORD,
)
_DEEPSEEK3 = _cut_by(_THREE_DIGITS, _DEEPSEEK3_CJK, rf"{_DEEPSEEK3_WORD}[\r\n]*|{_SPACES}")
_SPARK = _cut_by(_THREE_DIGITS, _DEEPSEEK3_CJK, rf"{_DEEPSEEK3_WORD}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
_DEEPSEEK_LLM = _cut_by(
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}",
)
_DEEPSEEK_CODER = _cut_by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")

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
            "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code granite-docling",
        ),
        (
            PreTokenizer(_digits_first),
            "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        ),
        (PreTokenizer(_falcon), "falcon"),
        (
            PreTokenizer(_LLAMA3, whole_words=True, add_bos=True),
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        ),
        (PreTokenizer(_LLAMA3), "dbrx smaug-bpe glm4 chatglm-bpe"),
        (PreTokenizer(_JAIS2), "jais-2"),
        (
            PreTokenizer(_QWEN2),
            "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan kormo f2llmv2 grok-2 solar-open",
        ),
        (PreTokenizer(_QWEN35), "qwen35"),
        (PreTokenizer(_UFAKZEKA), "ufakzeka"),
        (PreTokenizer(_LAGUNA), "laguna"),
        (PreTokenizer(_BAILING), "bailingmoe bailingmoe2 llada-moe"),
        (PreTokenizer(_SEED_CODER), "seed-coder"),
        (PreTokenizer(_EXAONE_MOE), "exaone-moe"),
        (PreTokenizer(_MINICPM5, whole_words=True), "minicpm5"),
        (PreTokenizer(_TEKKEN, whole_words=True, add_bos=True), "tekken"),
        (PreTokenizer(_GPT4O), "gpt-4o llama4 kanana2 talkie minimax-m2"),
        (PreTokenizer(_GPT4O, whole_words=True), "granite-embed-multi-97m"),
        (PreTokenizer(_TINY_AYA), "tiny_aya cohere2moe"),
        (PreTokenizer(_KIMI_K2), "kimi-k2"),
        (PreTokenizer(_YOUTU, whole_words=True), "youtu"),
        (PreTokenizer(_SUPERBPE), "superbpe"),
        (PreTokenizer(_BLOOM), "bloom poro-chat gpt3-finnish"),
        (PreTokenizer(_VIKING), "viking"),
        (PreTokenizer(_CHAMELEON, add_bos=True), "chameleon"),
        (PreTokenizer(_DEEPSEEK3), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
        (PreTokenizer(_SPARK), "spark2_5"),
        (PreTokenizer(_DEEPSEEK_LLM), "deepseek-llm"),
        (PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
        (PreTokenizer(_DEFAULT), DEFAULT),
        (PreTokenizer(_HEADRACE), OWN),
    )
    for name in names.split()
}
