"""Loading and encoding: special tokens, hostile files, hostile texts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from headrace.errors import CorruptFile, HeadraceError, InvalidRequest, UnsupportedModel
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer


def write_folder(folder: Path, backend: tokenizers.Tokenizer, **files: object) -> Path:
    """A checkpoint folder with a tokenizer and the JSON files given by stem."""
    (folder / "tokenizer.json").write_text(backend.to_str())
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value))
    return folder


@pytest.fixture
def plain(small_named: dict[str, tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    """A byte-level tokenizer whose post-processor adds nothing."""
    return small_named["byte_level"]


def test_empty_prompt_is_bos_alone(shared_data: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "stories260K" / "hf")
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode_prompt("") == [1]
    assert tokenizer.encode("", add_special=False) == []
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, frozenset({2}))
    assert tokenizer.vocabulary_size == 512


def test_empty_prompt_without_bos_is_refused(plain: tokenizers.Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="no beginning-of-sequence") as caught:
        Tokenizer(plain).encode_prompt("")
    assert caught.value.param == "prompt"


def test_empty_prompt_is_bos_also_where_texts_get_none(tmp_path: Path, plain: tokenizers.Tokenizer) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, plain, tokenizer_config={"bos_token": "<s>"}))
    assert tokenizer.encode_prompt("") == [tokenizer.id_of("<s>")]
    assert tokenizer.encode_prompt("the") == tokenizer.encode("the", add_special=False)


def test_round_trip(small: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer(small)
    text = "the wheel turns"
    assert tokenizer.decode(tokenizer.encode(text)).replace(" ", "") == text.replace(" ", "")


def test_ids_equal_the_reference(real: tokenizers.Tokenizer) -> None:
    texts = ["Hello world", "  two  spaces\n\n", "水車 🎉 naïve", "<s>x</s>", "a" * 3000, ""]
    expected = [real.encode(text).ids for text in texts]
    tokenizer = Tokenizer(real)
    assert [tokenizer.encode(text) for text in texts] == expected


def test_bos_is_added_once(tmp_path: Path, small_named: dict[str, tokenizers.Tokenizer]) -> None:
    config = {"add_bos_token": True, "bos_token": {"content": "<s>", "lstrip": False}}
    for name in ("byte_level", "byte_fallback"):  # without and with a post-processor that adds it
        tokenizer = load_tokenizer(write_folder(tmp_path, small_named[name], tokenizer_config=config))
        bos_id = tokenizer.id_of("<s>")
        ids = tokenizer.encode("the")
        assert ids[0] == bos_id
        assert bos_id not in ids[1:]
        assert tokenizer.encode("the", add_special=False) == ids[1:]


def test_special_ids_come_from_every_file(tmp_path: Path, plain: tokenizers.Tokenizer) -> None:
    folder = write_folder(
        tmp_path,
        plain,
        special_tokens_map={"bos_token": "<s>", "eos_token": "<unk>"},
        tokenizer_config={"eos_token": {"content": "</s>"}},
        generation_config={"eos_token_id": [7, 8]},
        config={"eos_token_id": 9, "bos_token_id": 5},
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_ids == {2, 7, 8, 9}  # tokenizer_config wins over special_tokens_map
    assert tokenizer.bos_id == 1


def test_bos_of_the_model_config_serves_where_the_tokenizer_names_none(
    tmp_path: Path, plain: tokenizers.Tokenizer
) -> None:
    folder = write_folder(tmp_path, plain, tokenizer_config={"bos_token": None}, config={"bos_token_id": 5})
    assert load_tokenizer(folder).bos_id == 5


def test_special_tokens_in_text_only_where_asked(small: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer(small)
    special = next(iter(sorted(tokenizer.pieces.special_ids)))
    spelling = tokenizer.pieces.token_of(special)
    text = f"the {spelling} the"
    assert special in tokenizer.encode(text, add_special=False)
    plain_ids = tokenizer.encode(text, add_special=False, parse_special=False)
    unknown = {tokenizer.id_of("<unk>"), tokenizer.id_of("[UNK]")}
    assert special not in plain_ids or special in unknown
    assert special in tokenizer.encode(text, add_special=False)  # asking otherwise once changes nothing


def test_truncation_and_padding_of_the_file_are_ignored(plain: tokenizers.Tokenizer) -> None:
    expected = plain.encode("the wheel turns while the water runs").ids
    plain.enable_truncation(3)
    plain.enable_padding(length=100)
    assert Tokenizer(plain).encode("the wheel turns while the water runs") == expected
    assert len(expected) > 3


def test_token_bytes(small_named: dict[str, tokenizers.Tokenizer]) -> None:
    for name in ("byte_level", "byte_fallback"):
        tokenizer = Tokenizer(small_named[name])
        ids = tokenizer.encode("the 水🎉", add_special=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode().strip() == "the 水🎉"
        assert tokenizer.token_bytes(1) == b"<s>"
        assert tokenizer.token_bytes(10**6) == tokenizer.token_bytes(-1) == b""


def test_lone_surrogates_are_refused(small: tokenizers.Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="character 2"):
        Tokenizer(small).encode("ab\ud800")


def test_a_missing_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json.*save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model":{"type":"BPE"}}'],
)
def test_a_corrupt_tokenizer_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_damaged_tokenizers_never_crash(tmp_path: Path, plain: tokenizers.Tokenizer) -> None:
    """Cuts and changed bytes: a tokenizer or a typed error, nothing else."""
    content = plain.to_str().encode()
    path = tmp_path / "tokenizer.json"
    for index in range(0, len(content), max(1, len(content) // 150)):
        for damaged in (content[:index], content[:index] + b"9" + content[index + 1 :]):
            path.write_bytes(damaged)
            try:
                load_tokenizer(tmp_path).encode("the wheel")
            except HeadraceError:
                continue


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config", "special_tokens_map"])
def test_a_corrupt_config_is_a_typed_error(tmp_path: Path, plain: tokenizers.Tokenizer, name: str) -> None:
    write_folder(tmp_path, plain)
    for content in ("{", "[1]", "[" * 100_000):
        (tmp_path / f"{name}.json").write_text(content)
        with pytest.raises(CorruptFile, match=name):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize("entry", ["2", -1, [1, "x"], 1.5, {}])
def test_token_ids_that_are_none(tmp_path: Path, plain: tokenizers.Tokenizer, entry: object) -> None:
    with pytest.raises(CorruptFile, match="eos_token_id"):
        load_tokenizer(write_folder(tmp_path, plain, config={"eos_token_id": entry}))


def test_encoding_starts_no_threads(tmp_path: Path, plain: tokenizers.Tokenizer) -> None:
    """The library's own pool would compete with the engine's."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc")
    write_folder(tmp_path, plain)
    program = (
        "import os, sys; from pathlib import Path\n"
        "from headrace.tokenization.tokenizer import load_tokenizer\n"
        "tokenizer = load_tokenizer(Path(sys.argv[1])); tokenizer.encode('the wheel ' * 20000)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
