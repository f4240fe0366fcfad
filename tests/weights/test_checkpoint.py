"""Folders that hold a checkpoint, and folders that pretend to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from headrace.errors import CorruptFile, ModelNotFound
from headrace.weights import config_json
from headrace.weights.checkpoint import INDEX, SINGLE, Checkpoint, is_complete, open_checkpoint

TENSORS = {
    "a": np.arange(12, dtype=np.float32).reshape(4, 3),
    "b": np.arange(6, dtype=np.float16).reshape(3, 2),
    "c": np.ones(2, np.float32),
}


def make_single(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    save_file(TENSORS, folder / SINGLE)
    return folder


def make_sharded(folder: Path, **places: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    save_file({"a": TENSORS["a"]}, folder / "one.safetensors")
    save_file({"b": TENSORS["b"], "c": TENSORS["c"]}, folder / "two.safetensors")
    default = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
    index = {"metadata": {"total_size": 68}, "weight_map": {**default, **places}}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def make_hub_cache(root: Path, shared_blobs: bool = False) -> Path:
    """The layout of huggingface_hub: snapshots/<commit>/ holds links to blobs, newer ones to shared blobs."""
    repository = root / "models--org--name"
    folder = repository / "snapshots" / ("c" * 40)
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c" * 40)
    for number, source in enumerate(make_single(root.parent / "source").iterdir()):
        blob = repository / "blobs" / f"{number:064x}"
        if shared_blobs:
            store = root / "blobs" / "00" / f"{number:064x}"
            store.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, store)
            blob.symlink_to(os.path.relpath(store, blob.parent))
        else:
            shutil.copy(source, blob)
        (folder / source.name).symlink_to(f"../../blobs/{blob.name}")
    return folder


def assert_holds_tensors(checkpoint: Checkpoint) -> None:
    assert set(checkpoint.tensors) == set(TENSORS)
    for name, expected in TENSORS.items():
        np.testing.assert_array_equal(checkpoint.float32(name), expected.astype(np.float32))


def test_single_file(tmp_path: Path) -> None:
    with open_checkpoint(make_single(tmp_path)) as checkpoint:
        assert checkpoint.config == {"model_type": "llama", "hidden_size": 8}
        assert checkpoint.generation_config is None
        assert_holds_tensors(checkpoint)


def test_shards(tmp_path: Path) -> None:
    with open_checkpoint(make_sharded(tmp_path)) as checkpoint:
        assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
        assert_holds_tensors(checkpoint)
        assert checkpoint.tensors["b"].file.name == "two.safetensors"


def test_rows(tmp_path: Path) -> None:
    out = bytearray(100)
    with open_checkpoint(make_single(tmp_path)) as checkpoint:
        checkpoint.read_rows("a", 1, 2, memoryview(out))
        assert bytes(out[:24]) == TENSORS["a"][1:3].tobytes() and not any(out[24:])
        with pytest.raises(ValueError, match="a"):
            checkpoint.read_rows("a", 3, 2, memoryview(out))
        with pytest.raises(ValueError, match="2 rows of a need 24 bytes, not 23"):
            checkpoint.read_rows("a", 0, 2, memoryview(bytearray(23)))


def test_rows_of_a_file_that_shrank(tmp_path: Path) -> None:
    with open_checkpoint(make_single(tmp_path)) as checkpoint:
        os.truncate(tmp_path / SINGLE, 100)
        with pytest.raises(CorruptFile, match=r"model\.safetensors.*'a'"):
            checkpoint.read_rows("a", 0, 4, memoryview(bytearray(48)))


def test_unknown_tensor(tmp_path: Path) -> None:
    with (
        open_checkpoint(make_single(tmp_path)) as checkpoint,
        pytest.raises(CorruptFile, match="no tensor 'z'"),
    ):
        checkpoint.float32("z")


def fingerprint(folder: Path) -> str:
    with open_checkpoint(folder) as checkpoint:
        return checkpoint.fingerprint


def test_fingerprint_changes_with_what_decides_the_weights(tmp_path: Path) -> None:
    folder = make_sharded(tmp_path / "x")
    first = fingerprint(folder)
    assert fingerprint(folder) == first
    folder = folder.rename(tmp_path / "y")
    assert fingerprint(folder) == first
    (folder / "generation_config.json").unlink()
    assert fingerprint(folder) == first
    status = (folder / "two.safetensors").stat()
    os.utime(folder / "two.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    touched = fingerprint(folder)
    assert touched != first
    (folder / "config.json").write_text('{"a": 1}')
    assert fingerprint(folder) not in (first, touched)
    save_file({"a": TENSORS["a"].reshape(3, 4)}, folder / "one.safetensors")
    os.utime(folder / "one.safetensors", ns=(0, 0))
    reshaped = fingerprint(folder)
    save_file({"a": TENSORS["a"]}, folder / "one.safetensors")
    os.utime(folder / "one.safetensors", ns=(0, 0))
    assert fingerprint(folder) != reshaped


@pytest.mark.parametrize("shared_blobs", [False, True])
def test_links_of_a_hub_cache(tmp_path: Path, shared_blobs: bool) -> None:
    folder = make_hub_cache(tmp_path / "hub", shared_blobs)
    assert is_complete(folder)
    with open_checkpoint(folder) as checkpoint:
        assert_holds_tensors(checkpoint)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with open_checkpoint(link) as checkpoint:
        assert_holds_tensors(checkpoint)


@pytest.mark.parametrize("name", [SINGLE, "config.json", "generation_config.json", "one.safetensors", INDEX])
def test_links_out_of_the_folder(tmp_path: Path, name: str) -> None:
    make = make_sharded if name in ("one.safetensors", INDEX, "generation_config.json") else make_single
    folder = make(tmp_path / "models" / "x")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptFile, match="link out of the model's folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "place",
    ["../two.safetensors", "/etc/passwd", "x/../../two.safetensors", "", "a\0b", "..\\two.safetensors"],
)
def test_index_that_leads_out_of_the_folder(tmp_path: Path, place: str) -> None:
    folder = make_sharded(tmp_path / "x", b=place)
    shutil.copy(folder / "two.safetensors", tmp_path)
    with pytest.raises(CorruptFile, match="leads out of the model's folder"):
        open_checkpoint(folder)


def test_index_names_a_loop_of_links(tmp_path: Path) -> None:
    folder = make_sharded(tmp_path, b="loop.safetensors")
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    with pytest.raises(CorruptFile, match=r"loop\.safetensors"):
        open_checkpoint(folder)


def test_index_and_shards_disagree(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"two\.safetensors holds 'a', it does not"):
        open_checkpoint(make_sharded(tmp_path, a="two.safetensors"))
    with pytest.raises(CorruptFile, match=r"three\.safetensors is missing"):
        open_checkpoint(make_sharded(tmp_path, a="three.safetensors"))
    with pytest.raises(CorruptFile, match="has more than 255 bytes"):
        open_checkpoint(make_sharded(tmp_path, a="x" * 300))


@pytest.mark.parametrize(
    ("index", "fragment"),
    [
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": ["a"]}', "no weight_map"),
        ('{"weight_map": {"a": 1}}', "no file name for 'a'"),
        ('{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}', "'a' twice"),
        ("[1", "not the JSON"),
        ("[" * 100_000, "not the JSON"),
    ],
)
def test_hostile_index(tmp_path: Path, index: str, fragment: str) -> None:
    folder = make_sharded(tmp_path)
    (folder / INDEX).write_text(index)
    with pytest.raises(CorruptFile, match=fragment):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "fragment"),
    [
        ('{"a": {"b": 1, "c": [{"d": 1, "d": 2}]}}', "'d' twice"),
        ('{"a": "x:\\"y\\":", "b": NaN}', "not the JSON"),
        ("[]", "not the JSON"),
        ('{"a": ' * 50_000, "not the JSON"),
        ('{"a": "' + "x" * 2**20 + '"}', "more than 1,048,576 bytes"),
    ],
)
def test_hostile_config(tmp_path: Path, config: str, fragment: str) -> None:
    folder = make_single(tmp_path)
    (folder / "config.json").write_text(config)
    with pytest.raises(CorruptFile, match=fragment) as caught:
        open_checkpoint(folder)
    assert "config.json" in caught.value.message


def test_colons_and_quotes_in_strings_are_no_keys(tmp_path: Path) -> None:
    folder = make_single(tmp_path)
    config = {"a:b": 'x":"y\\', "c": {"\\": ":", "d": [{"e": "\n:"}]}}
    (folder / "config.json").write_text(json.dumps(config))
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config == config


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not a folder"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"the path of one, as x\.gguf"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"pytorch_model\.bin may run code"):
        open_checkpoint(tmp_path)


def test_is_complete(tmp_path: Path) -> None:
    folder = make_sharded(tmp_path)
    assert is_complete(folder)
    (folder / "two.safetensors").unlink()
    assert not is_complete(folder)
    (folder / INDEX).unlink()
    assert not is_complete(folder)
    (folder / SINGLE).write_bytes(save(TENSORS))
    assert is_complete(folder)
    (folder / "config.json").unlink()
    assert not is_complete(folder)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_failed_open_closes_its_files(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(CorruptFile):
        open_checkpoint(make_sharded(tmp_path, a="two.safetensors"))
    assert open_files() == before


CONFIG: dict[str, object] = {
    "n": 3,
    "x": 1.5,
    "big": 10**400,
    "flag": True,
    "none": None,
    "name": "silu",
    "list": ["x", "y"],
    "mixed": ["x", 1],
    "rope": {"factor": 8, "deep": {"type": "yarn"}},
}


def test_typed_fields() -> None:
    assert config_json.integer(CONFIG, "n") == 3
    assert config_json.integer(CONFIG, "absent", 7) == config_json.integer(CONFIG, "none", 7) == 7
    assert config_json.number(CONFIG, "n") == 3.0
    assert config_json.number(CONFIG, "rope.factor") == 8.0
    assert config_json.number(CONFIG, "nothing.factor", 2.0) == 2.0
    assert config_json.boolean(CONFIG, "flag", False) is True
    assert config_json.boolean(CONFIG, "absent", True) is True
    assert config_json.text(CONFIG, "rope.deep.type") == "yarn"
    assert config_json.text(CONFIG, "absent", "gelu") == "gelu"
    assert config_json.texts(CONFIG, "list") == ("x", "y")
    assert config_json.texts(CONFIG, "absent") is None
    assert config_json.find(CONFIG, "rope") == {"factor": 8, "deep": {"type": "yarn"}}


def test_fields_of_the_wrong_type() -> None:
    wrong = [
        ("x", lambda: config_json.integer(CONFIG, "x")),
        ("flag", lambda: config_json.integer(CONFIG, "flag")),
        ("n", lambda: config_json.integer(CONFIG, "n", minimum=4)),
        ("n", lambda: config_json.integer(CONFIG, "n", maximum=2)),
        ("big", lambda: config_json.integer(CONFIG, "big", 1)),
        ("big", lambda: config_json.number(CONFIG, "big")),
        ("flag", lambda: config_json.number(CONFIG, "flag")),
        ("x", lambda: config_json.number(CONFIG, "x", minimum=2.0)),
        ("n", lambda: config_json.boolean(CONFIG, "n", True)),
        ("n", lambda: config_json.text(CONFIG, "n", "x")),
        ("mixed", lambda: config_json.texts(CONFIG, "mixed")),
        ("name", lambda: config_json.texts(CONFIG, "name")),
        ("name", lambda: config_json.find(CONFIG, "name.inner")),
    ]
    for field, ask in wrong:
        with pytest.raises(CorruptFile, match=f"config.json has '{field}' = .* must be"):
            ask()
    with pytest.raises(CorruptFile, match=r"config\.json has no 'absent'"):
        config_json.integer(CONFIG, "absent")
