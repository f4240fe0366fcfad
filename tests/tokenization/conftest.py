"""Small tokenizers of every kind, trained on the spot, and real ones where they are."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "the wheel turns while the water runs; the mill grinds and the miller sleeps.",
    "Das Rad dreht sich, solange Wasser läuft. Größe, Straße, über!",
    "水は低きに流れる。水車は回る。 🎉🎉 naïve café — “quoted” text",
    "def turn(self, n: int) -> int:\n\treturn n * 2  # twice\n\n",
]
SPECIALS = ["<unk>", "<s>", "</s>"]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["two words", AddedToken("günstig", normalized=False)])
    return tokenizer


def _metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    bytes_first = SPECIALS + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "t", "h", "e", "▁th", "▁the", "w", "a", "r", "▁w", "ü", "é", "▁▁", "水", "\n"]
    vocabulary = {token: index for index, token in enumerate(bytes_first + pieces)}
    merges = [("▁th", "e"), ("▁", "w"), ("▁", "▁")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _byte_fallback_unstripped() -> Tokenizer:
    tokenizer = _byte_fallback()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _word_suffix() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _no_decoder() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=100, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


SMALL: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": _byte_level,
    "metaspace": _metaspace,
    "byte_fallback": _byte_fallback,
    "byte_fallback_unstripped": _byte_fallback_unstripped,
    "word_piece": _word_piece,
    "word_suffix": _word_suffix,
    "no_decoder": _no_decoder,
}


@cache
def small_backend(name: str) -> str:
    """tokenizer.json of one of the small tokenizers."""
    return SMALL[name]().to_str()


@cache
def real_backend(folder: Path, name: str) -> str:
    """tokenizer.json of a real tokenizer, put together where only its vocabulary is there."""

    def unpacked(file: str) -> str:
        return lzma.decompress((folder / file).read_bytes()).decode()

    if name == "stories260K":
        return (folder.parent.parent.parent / "stories260K" / "hf" / "tokenizer.json").read_text()
    if name == "bert":
        tokenizer = Tokenizer(
            models.WordPiece(
                {token: index for index, token in enumerate(unpacked("vocab.txt.xz").splitlines())},
                unk_token="[UNK]",
            )
        )
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer.to_str()
    if name == "qwen2":
        lines = unpacked("merges.txt.xz").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        vocabulary = json.loads(unpacked("vocab.json.xz"))
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        return tokenizer.to_str()
    return unpacked("tokenizer.json.xz")


@pytest.fixture(params=sorted(SMALL))
def small(request: pytest.FixtureRequest) -> Tokenizer:
    """Each small tokenizer in turn, as the library's object."""
    return Tokenizer.from_str(small_backend(request.param))


@pytest.fixture(params=["gpt2", "llama", "bert", "qwen2", "stories260K"])
def real(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    """Each real tokenizer in turn, as the library's object."""
    return Tokenizer.from_str(real_backend(shared_data / "tokenizers" / "hf" / request.param, request.param))


@pytest.fixture
def small_named() -> dict[str, Tokenizer]:
    """All small tokenizers by name."""
    return {name: Tokenizer.from_str(small_backend(name)) for name in SMALL}
