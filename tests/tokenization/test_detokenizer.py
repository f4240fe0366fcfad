"""Streaming equals offline decoding, whatever the ids and wherever characters are split."""

from __future__ import annotations

import random

import pytest
import tokenizers

from headrace.tokenization.detokenizer import Detokenizer
from headrace.tokenization.token_bytes import Kind
from headrace.tokenization.tokenizer import Tokenizer

TEXTS = [
    "the wheel turns while the water runs",
    " leading  and   inner spaces ",
    "水は低きに流れる 🎉👩‍👩‍👧 naïve café — “x” Ωß",
    "line\nline\r\n\ttab \x00 nul",
    "<s>not special</s> two words günstig <0x41> ▁▁",
    "",
]


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    """The texts of every push, then of the flush."""
    stream = Detokenizer(tokenizer, skip_special=skip_special)
    return [stream.push(token_id) for token_id in ids] + [stream.flush()]


def assert_equal_to_offline(tokenizer: Tokenizer, backend: tokenizers.Tokenizer, ids: list[int]) -> None:
    for skip_special in (True, False):
        texts = streamed(tokenizer, ids, skip_special=skip_special)
        assert "".join(texts) == tokenizer.decode(ids, skip_special=skip_special), ids
        skipped = tokenizer.pieces.special_ids if skip_special else ()
        kept = [token_id for token_id in ids if token_id not in skipped]
        assert "".join(texts) == backend.decode(kept, skip_special_tokens=False)


def check_everything(backend: tokenizers.Tokenizer, rounds: int) -> None:
    tokenizer = Tokenizer(backend)
    generator = random.Random(7)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        for end in range(len(ids) + 1):
            assert_equal_to_offline(tokenizer, backend, ids[:end])
        for start in range(1, len(ids)):
            assert_equal_to_offline(tokenizer, backend, ids[start:])
    size = tokenizer.vocabulary_size
    few = [generator.randrange(size + 3) for _ in range(40)]  # ids past the end have no token
    for _ in range(rounds):
        pool = few if generator.random() < 0.5 else range(size + 3)
        ids = [generator.choice(pool) for _ in range(generator.randrange(1, 60))]
        assert_equal_to_offline(tokenizer, backend, ids)


def test_small_tokenizers_stream_what_they_decode(small: tokenizers.Tokenizer) -> None:
    check_everything(small, rounds=300)


def test_real_tokenizers_stream_what_they_decode(real: tokenizers.Tokenizer) -> None:
    check_everything(real, rounds=200)


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    """The 256 ids of single bytes, in order of the byte."""
    by_byte = {}
    for token_id in range(tokenizer.vocabulary_size):
        piece = tokenizer.pieces.of(token_id, skip_special=True)
        if piece is not None and len(piece.raw) == 1 and (piece.is_byte or not piece.text):
            by_byte.setdefault(piece.raw[0], token_id)
    return [by_byte[byte] for byte in range(256)]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "byte_fallback_unstripped"])
def test_raw_bytes_in_any_order(name: str, small_named: dict[str, tokenizers.Tokenizer]) -> None:
    """Valid, cut, overlong, surrogate and plainly wrong UTF-8, byte by byte with text between."""
    backend = small_named[name]
    tokenizer = Tokenizer(backend)
    single = byte_ids(tokenizer)
    word = tokenizer.encode("the", add_special=False)
    pieces = [
        "é".encode(), "水".encode(), "🎉".encode(), b"\xe6\xb0", b"\xf0\x9f\x8e", b"\xf0\x9f", b"\xc3",
        b"\xff", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"a", b" ",
    ]  # fmt: skip
    generator = random.Random(11)
    for _ in range(3000):
        ids: list[int] = []
        for _ in range(generator.randrange(1, 7)):
            raw = generator.choice(pieces) if generator.random() < 0.8 else generator.randbytes(2)
            ids += [single[byte] for byte in raw]
            if generator.random() < 0.2:
                ids += word
        assert_equal_to_offline(tokenizer, backend, ids)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_no_half_character_leaves(name: str, small_named: dict[str, tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(small_named[name])
    single = byte_ids(tokenizer)
    text = "水🎉é"
    texts = streamed(tokenizer, [single[byte] for byte in text.encode()])
    assert "".join(texts) == text
    assert all("�" not in part for part in texts)


def test_characters_leave_as_soon_as_they_are_whole(small_named: dict[str, tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(small_named["byte_level"])
    single = byte_ids(tokenizer)
    assert streamed(tokenizer, [single[byte] for byte in "水é".encode()]) == ["", "", "水", "", "é", ""]


def test_a_continuation_keeps_its_leading_space(small_named: dict[str, tokenizers.Tokenizer]) -> None:
    for name in ("byte_fallback", "metaspace"):
        tokenizer = Tokenizer(small_named[name])
        spelled = [(tokenizer.pieces.token_of(i) or "", i) for i in range(tokenizer.vocabulary_size)]
        token, token_id = max(
            (token, i) for token, i in spelled if token.startswith("▁") and token[1:].isalpha()
        )
        word = token.removeprefix("▁")
        assert word and "▁" not in word
        assert Detokenizer(tokenizer).push(token_id) == word
        assert Detokenizer(tokenizer, is_continuation=True).push(token_id) == " " + word


def test_bytes_left_open_by_the_prompt_are_not_repeated(
    small_named: dict[str, tokenizers.Tokenizer],
) -> None:
    tokenizer = Tokenizer(small_named["byte_level"])
    single = byte_ids(tokenizer)
    stream = Detokenizer(tokenizer, is_continuation=True)  # the prompt ended in E6 B0, two thirds of 水
    assert stream.push(single[0xB4]) + stream.push(single[ord("a")]) + stream.flush() == "�a"


def test_kinds_of_real_decoders(real: tokenizers.Tokenizer) -> None:
    assert Tokenizer(real).pieces.kind is not Kind.WHOLE


def test_a_decoder_of_unknown_shape_asks_the_library(small_named: dict[str, tokenizers.Tokenizer]) -> None:
    assert Tokenizer(small_named["word_suffix"]).pieces.kind is Kind.WHOLE


def test_visible_special_tokens_are_part_of_the_text() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[U]": 1}, unk_token="[U]"))
    backend.add_special_tokens(["<call>", "<end>"])
    tokenizer = Tokenizer(backend)
    shown = tokenizer.id_of("<call>")
    assert shown is not None
    stream = Detokenizer(tokenizer, visible_token_ids=frozenset({shown}))
    text = "".join(stream.push(token_id) for token_id in [0, shown, 0, shown + 1]) + stream.flush()
    assert text.split() == ["a", "<call>", "a"]
