"""The safetensors reader against the reference implementation, and against files that lie."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from headrace.errors import CorruptFile, HeadraceError, UnsupportedModel
from headrace.weights.safetensors import reader
from headrace.weights.safetensors.reader import SafetensorsFile

TENSORS = {
    "model.embed.weight": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]},
    "norm": {"dtype": "BF16", "shape": [5], "data_offsets": [48, 58]},
    "half": {"dtype": "F16", "shape": [2, 1, 2], "data_offsets": [58, 66]},
    "ids": {"dtype": "U8", "shape": [2], "data_offsets": [66, 68]},
}
HEADER = {"__metadata__": {"format": "pt", "a:b": 'x"y:\\'}, **TENSORS}
DATA = bytes(range(68))

reuse_tmp_path = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def encode(header: object, data: bytes = DATA) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(folder: Path, content: bytes) -> Path:
    path = folder / "x.safetensors"
    path.unlink(missing_ok=True)  # ext4 flushes a file that is written over, which takes milliseconds
    path.write_bytes(content)
    return path


def read(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Everything in the file, as (dtype, shape, bytes)."""
    found: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    with SafetensorsFile(path) as file:
        for name, info in file.tensors.items():
            content = bytearray(info.nbytes)
            file.read_into(info, 0, memoryview(content))
            found[name] = (info.dtype, info.shape, bytes(content))
    return found


def oracle(content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in safetensors.deserialize(content)
    }


def refused(folder: Path, content: bytes) -> str:
    with pytest.raises(CorruptFile) as caught:
        SafetensorsFile(write(folder, content))
    assert "x.safetensors" in caught.value.message
    return caught.value.message


def assert_refused_or_same_as_oracle(folder: Path, content: bytes) -> bool:
    try:
        found = read(write(folder, content))
    except HeadraceError as error:
        assert isinstance(error, CorruptFile)
        return False
    assert found == oracle(content)
    return True


def test_reads_what_the_reference_reads(tmp_path: Path) -> None:
    content = encode(HEADER)
    assert read(write(tmp_path, content)) == oracle(content)


def test_accepts_padding_empty_tensors_and_no_tensors(tmp_path: Path) -> None:
    for header, data in [
        (json.dumps(HEADER).encode() + b"   ", DATA),
        ({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, b""),
        ({"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, b"1234"),
        ({"a": {"dtype": "F4", "shape": [3, 2], "data_offsets": [0, 3]}}, b"123"),
        ({}, b""),
        ({"__metadata__": None}, b""),
    ]:
        assert assert_refused_or_same_as_oracle(tmp_path, encode(header, data))


def test_float32_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 64)  # several blocks
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**16, (7, 11), np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] = 0x3C00  # neither infinite nor NaN as F16 or as BF16
    bits[(bits & 0x7F80) == 0x7F80] = 0x3F80
    floats = rng.standard_normal((3, 50), np.float32)
    entries = {
        "bf16": ("BF16", bits.shape, bits.tobytes()),
        "f16": ("F16", bits.shape, bits.tobytes()),
        "f32": ("F32", floats.shape, floats.tobytes()),
        "scalar": ("F32", (), floats[0, :1].tobytes()),
        "empty": ("F32", (0, 3), b""),
    }
    header, data = {}, b""
    for name, (dtype, shape, content) in entries.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    with SafetensorsFile(write(tmp_path, encode(header, data))) as file:
        found = {name: file.float32(info) for name, info in file.tensors.items()}
    np.testing.assert_array_equal(found["f32"], floats)
    np.testing.assert_array_equal(found["f16"], bits.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(found["bf16"].view(np.uint32), bits.astype(np.uint32) << 16)
    assert found["scalar"].shape == () and found["scalar"] == floats[0, 0]
    assert found["empty"].shape == (0, 3)
    assert all(array.dtype == np.float32 for array in found.values())


def test_other_element_types_are_listed_and_named_when_read(tmp_path: Path) -> None:
    with SafetensorsFile(write(tmp_path, encode(HEADER))) as file:
        assert file.tensors["ids"].dtype == "U8"
        with pytest.raises(UnsupportedModel, match="'ids' is stored as U8"):
            file.float32(file.tensors["ids"])


def test_every_header_bit_flipped(tmp_path: Path) -> None:
    content = encode(HEADER)
    accepted = 0
    for bit in range(8 * (len(content) - len(DATA))):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        accepted += assert_refused_or_same_as_oracle(tmp_path, bytes(flipped))
    assert accepted > 100  # in the tensors' names and in the metadata


def test_every_truncation(tmp_path: Path) -> None:
    content = encode(HEADER)
    for length in range(len(content)):
        refused(tmp_path, content[:length])
    refused(tmp_path, content + b"\0")


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "fragment"),
    [
        pytest.param({"w": entry(offsets=(0, 2**63))}, "'w'", id="offset-over-int64"),
        pytest.param({"w": entry(offsets=(0, 2**64 + 8))}, "'w'", id="offset-wraps-to-8"),
        pytest.param({"w": entry(offsets=(-8, 0))}, "'w'", id="negative-offset"),
        pytest.param({"w": entry(offsets=(8, 0))}, "8 to 0", id="reversed-offsets"),
        pytest.param({"w": entry(offsets=(0, 8, 8))}, "'w'", id="three-offsets"),
        pytest.param({"w": entry(offsets=(0.0, 8.0))}, "'w'", id="float-offsets"),
        pytest.param({"w": entry(offsets=(0, 16))}, "0 to 16 of 8", id="past-the-end"),
        pytest.param({"w": entry(shape=(2**32, 2**32))}, "'w'", id="product-wraps-to-0"),
        pytest.param({"w": entry(shape=(2**61 + 2,))}, "'w'", id="bytes-wrap-to-8"),
        pytest.param({"w": entry(shape=(2**62,) * 64)}, "'w'", id="product-of-4000-bits"),
        pytest.param({"w": entry(shape=(1,) * 65)}, "'w'", id="65-dimensions"),
        pytest.param({"w": entry(shape=(-2,))}, "'w'", id="negative-dimension"),
        pytest.param({"w": entry(shape=(3,))}, "needs 12 bytes, its offsets give 8", id="wrong-shape"),
        pytest.param({"w": entry(dtype="F33")}, "'F33'", id="unknown-type"),
        pytest.param({"w": entry(dtype=None)}, "'w'", id="type-is-null"),
        pytest.param({"w": entry(dtype="F4", shape=(15,))}, "'w'", id="half-a-byte"),
        pytest.param({"w": {**entry(), "more": 1}}, "'w'", id="unknown-field"),
        pytest.param({"w": {"dtype": "F32", "shape": (2,)}}, "'w'", id="missing-field"),
        pytest.param({"w": [1]}, "'w'", id="entry-is-a-list"),
        pytest.param({"a": entry(), "b": entry()}, "overlaps", id="same-bytes-twice"),
        pytest.param({"a": entry(shape=(1,), offsets=(4, 8))}, "gap", id="gap-at-the-start"),
        pytest.param({"a": entry(shape=(1,), offsets=(0, 4))}, "4 bytes after", id="bytes-of-nobody"),
        pytest.param({"__metadata__": {"a": 1}, "w": entry()}, "__metadata__", id="metadata-number"),
        pytest.param({"__metadata__": ["a"], "w": entry()}, "__metadata__", id="metadata-list"),
        pytest.param(b'{"w":1,"w":2}', "'w'", id="duplicate-wrong-entries"),
        pytest.param(b"[]", "start", id="no-object"),
        pytest.param(b" {}", "start", id="leading-space"),
        pytest.param(b"{}{}", "JSON", id="two-values"),
        pytest.param(b'{"\xff":{}}', "x.safetensors", id="not-utf8"),
        pytest.param(b'{"\\ud800":{}}', "x.safetensors", id="half-a-surrogate"),
        pytest.param(b'{"a":' * 100_000, "x.safetensors", id="deep-objects"),
        pytest.param(b'{"a":' + b"[" * 100_000, "x.safetensors", id="deep-lists"),
        pytest.param(b'{"' + b"\\" * 100_001, "x.safetensors", id="backslashes"),
        pytest.param(b'{"w":{"dtype":"F32","shape":[' + b"9" * 100_000 + b"]}}", "'w'", id="long-number"),
    ],
)
def test_hostile_headers(tmp_path: Path, header: object, fragment: str) -> None:
    assert fragment in refused(tmp_path, encode(header, b"12345678"))


def test_duplicate_keys_are_named(tmp_path: Path) -> None:
    good = json.dumps(entry()).encode()
    twice = b'{"w":' + good + b',"w":' + good + b"}"
    assert "'w' twice" in refused(tmp_path, encode(twice, b"12345678"))
    inner = b'{"w":{"shape":[2],"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    assert "'shape' twice" in refused(tmp_path, encode(inner, b"12345678"))
    metadata = b'{"__metadata__":{"k":"1","k":"1"},"w":' + good + b"}"
    assert "'k' twice" in refused(tmp_path, encode(metadata, b"12345678"))
    escaped = b'{"w":' + good + b',"\\u0077":' + good + b"}"
    assert "'w' twice" in refused(tmp_path, encode(escaped, b"12345678"))


def test_header_length_lies(tmp_path: Path) -> None:
    for length in (0, 2, 500, 2**31, 2**63 - 1, 2**63, 2**64 - 1):
        refused(tmp_path, length.to_bytes(8, "little") + encode(HEADER)[8:])


def test_header_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 100)
    assert "the limit is 100" in refused(tmp_path, encode(HEADER))


def test_metadata_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_METADATA_BYTES", 10)
    assert "__metadata__" in refused(tmp_path, encode(HEADER))


def test_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(CorruptFile, match="not a regular file"):
            SafetensorsFile(path)


def test_file_that_shrinks_while_open(tmp_path: Path) -> None:
    path = write(tmp_path, encode(HEADER))
    with SafetensorsFile(path) as file:
        whole = file.float32(file.tensors["model.embed.weight"])
        os.truncate(path, path.stat().st_size - 1)
        np.testing.assert_array_equal(file.float32(file.tensors["model.embed.weight"]), whole)
        with pytest.raises(CorruptFile, match=r"'ids'.*cut short after it was opened"):
            file.read_into(file.tensors["ids"], 0, memoryview(bytearray(2)))
        os.truncate(path, 0)
        with pytest.raises(CorruptFile, match="cut short after it was opened"):
            file.float32(file.tensors["model.embed.weight"])


def test_unreadable_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with SafetensorsFile(write(tmp_path, encode(HEADER))) as file:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(CorruptFile, match=r"x\.safetensors cannot be read .Input/output error."):
            file.float32(file.tensors["norm"])
        file.close()
        file.close()  # does no harm


def test_reading_outside_of_a_tensor_is_refused(tmp_path: Path) -> None:
    with SafetensorsFile(write(tmp_path, encode(HEADER))) as file:
        for start, size in [(-1, 1), (0, 49), (48, 1)]:
            with pytest.raises(ValueError, match=r"model\.embed\.weight"):
                file.read_into(file.tensors["model.embed.weight"], start, memoryview(bytearray(size)))


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_closes_its_file(tmp_path: Path) -> None:
    before = open_files()
    refused(tmp_path, encode(HEADER)[:-1])
    with SafetensorsFile(write(tmp_path, encode(HEADER))):
        pass
    assert open_files() == before


@reuse_tmp_path
@given(
    st.lists(st.tuples(st.integers(0, len(encode(HEADER)) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_damaged_bytes(tmp_path: Path, damage: list[tuple[int, int]]) -> None:
    content = bytearray(encode(HEADER))
    for position, value in damage:
        content[position] = value
    assert_refused_or_same_as_oracle(tmp_path, bytes(content))


sizes = st.one_of(st.integers(-1, 9), st.sampled_from([2**31, 2**32, 2**61, 2**63 - 1, 2**63, 2**64]))
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "U8", "I64", "F4", "f32", ""]),
        "shape": st.lists(sizes, max_size=3),
        "data_offsets": st.lists(sizes, min_size=2, max_size=2),
    }
)


@reuse_tmp_path
@given(st.dictionaries(st.text(max_size=3), entries, max_size=3), st.binary(max_size=20))
def test_invented_headers(tmp_path: Path, header: dict[str, object], data: bytes) -> None:
    assert_refused_or_same_as_oracle(tmp_path, encode(header, data))


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda name: name != "__metadata__"
)
arrays = st.builds(
    np.zeros, st.lists(st.integers(0, 4), max_size=3), st.sampled_from(["f4", "f2", "i8", "?"])
)


@reuse_tmp_path
@given(st.dictionaries(names, arrays, max_size=5))
def test_what_the_reference_writes(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    content = save(tensors)
    assert assert_refused_or_same_as_oracle(tmp_path, content)
    assert set(oracle(content)) == set(tensors)


def test_a_real_checkpoint(shared_data: Path) -> None:
    path = shared_data / "stories260K" / "hf" / "model.safetensors"
    expected = load_file(path)
    with SafetensorsFile(path) as file:
        assert set(file.tensors) == set(expected)
        for name, info in file.tensors.items():
            np.testing.assert_array_equal(file.float32(info), expected[name].astype(np.float32))
