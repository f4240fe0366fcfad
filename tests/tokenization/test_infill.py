"""Prompts for filling in: each family's spelling, texts that stay texts, no space that nobody wrote."""

from __future__ import annotations

import pytest
import tokenizers

from headrace.errors import InvalidRequest
from headrace.tokenization.infill import infill_prompt
from headrace.tokenization.tokenizer import Tokenizer
from tokenization.conftest import real_backend

BEFORE, AFTER = "def turn(n):\n\treturn ", "\n\nthe mill <|fim_middle|>"
FAMILIES = [
    (
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"],
        f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>",
        ["<|fim_pad|>", "<|file_sep|>"],
    ),
    (
        ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<|endoftext|>"],
        f"<fim_prefix>{BEFORE}<fim_suffix>{AFTER}<fim_middle>",
        ["<|endoftext|>"],
    ),
    (
        ["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"],
        f"<｜fim▁begin｜>{BEFORE}<｜fim▁hole｜>{AFTER}<｜fim▁end｜>",
        [],
    ),
    (["[SUFFIX]", "[PREFIX]", "[MIDDLE]"], f"[SUFFIX]{AFTER}[PREFIX]{BEFORE}", []),
]


@pytest.mark.parametrize(("marks", "text", "ends"), FAMILIES)
@pytest.mark.parametrize("special", [True, False])
def test_families_of_byte_level_tokenizers(
    small_named: dict[str, tokenizers.Tokenizer], marks: list[str], text: str, ends: list[str], special: bool
) -> None:
    backend = small_named["byte_level"]
    backend.add_special_tokens(marks) if special else backend.add_tokens(marks)
    tokenizer = Tokenizer(backend, bos_id=1, add_bos=True)
    infill = infill_prompt(tokenizer, BEFORE, AFTER)
    assert tokenizer.decode(infill.ids, skip_special=False) == "<s>" + text
    assert [tokenizer.pieces.token_of(token) for token in infill.end_ids] == ends
    counted = [token for token in infill.ids if token in {tokenizer.id_of(mark) for mark in marks}]
    # What a text spells is no mark, unless the tokenizer has it as an ordinary word.
    assert len(counted) == (2 if "[SUFFIX]" in marks else 3) or not special


def test_code_llama_has_no_space_before_what_comes_after(
    small_named: dict[str, tokenizers.Tokenizer],
) -> None:
    backend = small_named["byte_fallback"]
    backend.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in ("▁<PRE>", "▁<SUF>")])
    backend.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in ("▁<MID>", "▁<EOT>")])
    tokenizer = Tokenizer(backend, bos_id=1)
    infill = infill_prompt(tokenizer, "the w", "ater")
    tokens = [tokenizer.pieces.token_of(token) for token in infill.ids]
    before, after = tokens.index("▁<PRE>"), tokens.index("▁<SUF>")
    assert tokens[:2] == ["<s>", "▁<PRE>"] and tokens[-1] == "▁<MID>"
    assert "".join(map(str, tokens[before + 1 : after])) == "▁the▁w"
    assert "".join(map(str, tokens[after + 1 : -1])) == "ater"
    assert infill.end_ids == (tokenizer.id_of("▁<EOT>"),)


def test_empty_texts_are_texts(small_named: dict[str, tokenizers.Tokenizer]) -> None:
    backend = small_named["byte_level"]
    backend.add_special_tokens(FAMILIES[0][0])
    tokenizer = Tokenizer(backend)
    ids = infill_prompt(tokenizer, "", "x").ids
    assert tokenizer.decode(ids, skip_special=False) == "<|fim_prefix|><|fim_suffix|>x<|fim_middle|>"


def test_a_tokenizer_without_marks_says_so(small: tokenizers.Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="no tokens for filling in") as caught:
        infill_prompt(Tokenizer(small), "a", "b")
    assert caught.value.param == "suffix" and caught.value.code == "unsupported_parameter"


def test_a_real_tokenizer(shared_data) -> None:
    folder = shared_data / "tokenizers" / "hf" / "llama"
    backend = tokenizers.Tokenizer.from_str(real_backend(folder, "llama"))
    marks = ("▁<PRE>", "▁<SUF>", "▁<MID>")
    backend.add_tokens([tokenizers.AddedToken(mark, normalized=False) for mark in marks])
    tokenizer = Tokenizer(backend)
    infill = infill_prompt(tokenizer, "int main() {", " return 0;}")
    tokens = [tokenizer.pieces.token_of(token) or "" for token in infill.ids]
    text = "".join(tokens).replace("▁<", " <").replace("▁", " ")
    assert text.strip() == "<s> <PRE> int main() { <SUF> return 0;} <MID>"
