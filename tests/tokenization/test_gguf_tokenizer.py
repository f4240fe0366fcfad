"""Tokenizers from GGUF metadata: the documented ids, those of Hugging Face, and metadata that is wrong."""

from __future__ import annotations

import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from headrace.errors import CorruptFile, HeadraceError, UnsupportedModel
from headrace.tokenization.detokenizer import Detokenizer
from headrace.tokenization.tokenizer import Tokenizer
from headrace.weights.gguf.pre_tokenizers import PRE_TOKENIZERS
from headrace.weights.gguf.reader import GgufFile
from headrace.weights.gguf.tokenizer import gguf_tokenizer
from tokenization.conftest import real_backend

REAL = {"llama": "llama-spm", "gpt2": "gpt-2", "bert": "bert-bge"}  # our Hugging Face folder → GGUF
ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZ",
    "0123456789",
    "  \t\n\r\u00a0\u3000",
    ".,;:!?'\"()[]{}<>/\\@#$%^&*-_=+|~`",
    "äöüßéèñçøåłžœæÄÖÉ",
    "абвгдежзклмнЁЖ",
    "αβγδλπΩ",
    "水火木金土日月中文字",
    "ひらがなカタカナ한국어조선",
    "अआइक्षणाالعربية",
    "🎉🦀👩\u200d🚀🇩🇪\ufe0f",
    "e\u0301a\u0308\u0e33\u200b\u00ad",
]


@pytest.fixture(scope="module", params=REAL)
def real_pair(request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: Any) -> Any:
    """The tokenizer of a GGUF, its strings and ids, and the Hugging Face tokenizer of the same model."""
    folder = shared_data / "tokenizers"
    stem = folder / "gguf" / f"ggml-vocab-{REAL[request.param]}.gguf"
    path = tmp_path_factory.mktemp("gguf") / "vocabulary.gguf"
    path.write_bytes(lzma.decompress(Path(f"{stem}.xz").read_bytes()))
    with GgufFile(path) as file:
        tokenizer = gguf_tokenizer(file.metadata)
    strings = Path(f"{stem}.inp").read_text().split("\n__ggml_vocab_test__\n")
    ids = [[int(i) for i in line.split()] for line in Path(f"{stem}.out").read_text().split("\n")]
    theirs = Tokenizer(Backend.from_str(real_backend(folder / "hf" / request.param, request.param)))
    return tokenizer, strings, ids, theirs


def test_the_documented_ids(real_pair: Any) -> None:
    tokenizer, strings, ids, _ = real_pair
    assert len(strings) == len(ids) == 47
    for string, wanted in zip(strings, ids, strict=True):
        assert tokenizer.encode(string, add_special=False) == wanted, string


def random_text(rng: random.Random) -> str:
    parts = [rng.choice(ALPHABETS) for _ in range(rng.randint(1, 8))]
    return "".join(rng.choice(part) for part in parts for _ in range(rng.randint(1, 6)))


def test_the_ids_and_texts_of_hugging_face(real_pair: Any) -> None:
    tokenizer, _, _, theirs = real_pair
    rng = random.Random(0)
    for _ in range(10_000):
        string = random_text(rng)
        ids = tokenizer.encode(string, add_special=False)
        assert ids == theirs.encode(string, add_special=False), string
        assert tokenizer.decode(ids, skip_special=False) == theirs.decode(ids, skip_special=False)


# --- small vocabularies

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "t", "h", "e", "x", "▁t", "he", "▁the", "▁x"]


def spm(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, "<|turn|>", "mill wheel"]
    scores = [0.0] * 259 + [-100.0, -101, -102, -103, -104, -2, -3, -1, -4, 0, 0]
    return keys(
        {
            "model": "llama",
            "tokens": tokens,
            "scores": np.array(scores, np.float32),
            "token_type": np.array([2, 3, 3, *[6] * 256, *[1] * len(PIECES), 3, 4], np.int32),
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        changes,
    )


def bpe(**changes: Any) -> dict[str, Any]:
    tokens = [*"abcdefgh0123456789!", "Ġ", "ab", "Ġab", "abc", "<|im_end|>", "<|endoftext|>"]
    return keys(
        {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": tokens,
            "merges": ["a b", "Ġ ab"],
            "token_type": np.array([1] * (len(tokens) - 2) + [3, 3], np.int32),
            "eos_token_id": len(tokens) - 1,
        },
        changes,
    )


def keys(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = {name: value for name, value in (values | changes).items() if value is not None}
    return {f"tokenizer.ggml.{name}": value for name, value in changed.items()}


def spelled(tokenizer: Tokenizer, text: str, **flags: bool) -> list[str | None]:
    return [tokenizer.pieces.token_of(token_id) for token_id in tokenizer.encode(text, **flags)]


def test_scores_decide_which_parts_are_joined() -> None:
    assert spelled(gguf_tokenizer(spm()), "the x") == ["<s>", "▁the", "▁x"]
    worse = spm()["tokenizer.ggml.scores"].copy()
    worse[259 + PIECES.index("▁t")] = -5  # now "he" is joined first, and "▁the" is "▁t" and "he" no more
    worse[259 + PIECES.index("▁the")] = -200
    assert spelled(gguf_tokenizer(spm(scores=worse)), "the") == ["<s>", "▁the"]
    assert spelled(gguf_tokenizer(spm()), "é") == ["<s>", "▁", "<0xC3>", "<0xA9>"]


def test_ends_are_added_as_the_flags_say() -> None:
    text = ["▁the"]
    for bos, eos in ((True, True), (True, False), (False, True), (False, False)):
        tokenizer = gguf_tokenizer(spm(add_bos_token=bos, add_eos_token=eos))
        assert spelled(tokenizer, "the") == ["<s>"] * bos + text + ["</s>"] * eos
        assert spelled(tokenizer, "the", add_special=False) == text
        assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, {2})
    assert spelled(gguf_tokenizer(bpe()), "ab") == ["ab"]
    assert spelled(gguf_tokenizer(bpe(pre="llama-bpe", bos_token_id=0)), "ab") == ["a", "ab"]
    assert spelled(gguf_tokenizer(bpe(add_bos_token=True, bos_token_id=0)), "ab") == ["a", "ab"]


def test_the_space_before_a_text() -> None:
    assert spelled(gguf_tokenizer(spm(add_space_prefix=False)), "the", add_special=False) == ["t", "he"]
    tokenizer = gguf_tokenizer(spm(add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"
    assert spelled(gguf_tokenizer(bpe(add_space_prefix=True)), "ab") == ["Ġab"]


def test_tokens_that_are_found_whole() -> None:
    tokenizer = gguf_tokenizer(spm())
    assert spelled(tokenizer, "the<|turn|>x", add_special=False) == ["▁the", "<|turn|>", "▁x"]
    plain = spelled(tokenizer, "<|turn|>", add_special=False, parse_special=False)
    assert "<|turn|>" not in plain
    assert "<0x7C>" in plain
    assert "mill wheel" in spelled(tokenizer, "mill wheel", parse_special=False)


def test_ends_of_a_turn_end_an_answer() -> None:
    tokenizer = gguf_tokenizer(bpe())
    assert tokenizer.eos_ids == {tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<|endoftext|>")}
    assert gguf_tokenizer(spm(eot_token_id=268, eom_token_id=269)).eos_ids == {2, 268, 269}


def test_whole_words_are_not_taken_apart() -> None:
    """Llama 3's vocabulary has words that no merge makes."""
    assert spelled(gguf_tokenizer(bpe()), "abc") == ["ab", "c"]
    assert spelled(gguf_tokenizer(bpe(pre="llama-bpe", add_bos_token=False)), "abc") == ["abc"]


def test_texts_stream() -> None:
    tokenizer = gguf_tokenizer(spm())
    ids = tokenizer.encode("the é x", add_special=False)
    stream = Detokenizer(tokenizer)
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids) == "the é x"


CUTS = {
    "gpt-2": ["It", "'s", " 12345", "!?", " \n", " x", " WoRd"],
    "llama-bpe": ["It", "'s", " ", "123", "45", "!?", " \n", " x", " WoRd"],
    "qwen2": ["It", "'s", " ", "1", "2", "3", "4", "5", "!?", " \n", " x", " WoRd"],
    "starcoder": ["It", "'s", " ", "1", "2", "3", "4", "5", "!?", " \n", " x", " WoRd"],
    "falcon": ["It", "'", "s", " ", "123", "45", "!?", " \n", " x", " WoRd"],
    "tekken": ["It", "'s", " ", "1", "2", "3", "4", "5", "!?", " \n", " x", " Wo", "Rd"],
    "gpt-4o": ["It's", " ", "123", "45", "!?", " \n", " x", " Wo", "Rd"],
    "deepseek-v3": ["It", "'s", " ", "123", "45", "!?", " \n", " x", " WoRd"],
    "deepseek-coder": ["It", "'", "s", " ", "1", "2", "3", "4", "5", "!?", " ", "\n", " x", " WoRd"],
}


@pytest.mark.parametrize("name", CUTS)
def test_how_texts_are_cut(name: str) -> None:
    cut = PRE_TOKENIZERS[name].build(False).pre_tokenize_str("It's 12345!? \n x WoRd")
    assert [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in cut] == CUTS[name]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_the_text(name: str) -> None:
    rng = random.Random(1)
    pre_tokenizer = PRE_TOKENIZERS[name].build(False)
    for _ in range(50):
        string = random_text(rng)
        pieces = "".join(piece for piece, _ in pre_tokenizer.pre_tokenize_str(string))
        assert len(pieces) == len(string.encode())  # one character stands for each byte


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (spm(model=None), CorruptFile, "model is missing"),
        (spm(model="t5"), UnsupportedModel, "kind 't5'; known: llama, gpt2, bert"),
        (spm(tokens=None), CorruptFile, "tokens is missing, an array of strings"),
        (spm(tokens="abc"), CorruptFile, "tokens is 'abc', an array of strings"),
        (
            spm(tokens=["a", "b", "a"], scores=np.zeros(3), token_type=None),
            CorruptFile,
            "is 'a', tokens that differ",
        ),
        (spm(scores=None), CorruptFile, "scores is missing"),
        (spm(scores=np.zeros(3)), CorruptFile, "an array of 270 numbers"),
        (spm(scores=np.full(270, np.nan)), CorruptFile, "an array of 270 numbers"),
        (spm(token_type=np.zeros(2, np.int32)), CorruptFile, "token_type is .*, an array of 270 numbers"),
        (spm(bos_token_id=270), CorruptFile, "bos_token_id is 270, an id below 270"),
        (spm(eos_token_id=-1), CorruptFile, "eos_token_id is -1"),
        (
            spm(eos_token_id=None, add_eos_token=True),
            CorruptFile,
            "eos_token_id is missing, the id that add_eos",
        ),
        (spm(bos_token_id=None), CorruptFile, "bos_token_id is missing, the id that add_bos_token"),
        (spm(add_bos_token=1), CorruptFile, "add_bos_token is 1, true or false"),
        (
            spm(tokens=[*spm()["tokenizer.ggml.tokens"][:-1], "x" * 300]),
            CorruptFile,
            "at most 256 characters",
        ),
        (bpe(pre=7), UnsupportedModel, "tokenizer.ggml.pre is 7"),
        (bpe(pre="mystery"), UnsupportedModel, "'mystery': how texts are cut is not known; known: gpt-2"),
        (bpe(merges=None), CorruptFile, "merges is missing"),
        (bpe(merges=["ab"]), CorruptFile, "merges is 'ab', two parts"),
        (bpe(merges=["a z"]), CorruptFile, "cannot be built"),
        (keys({"model": "bert", "tokens": ["[UNK]"]}, {}), CorruptFile, "unknown_token_id is missing"),
    ],
)
def test_what_is_refused(metadata: dict[str, Any], error: type[HeadraceError], message: str) -> None:
    with pytest.raises(error, match=message):
        gguf_tokenizer(metadata)
