"""The GGUF reader: every type of value, and hostile files, which end in a typed error."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_file import Raw, Stored, encode, gguf_bytes, text
from headrace.errors import CorruptFile, UnsupportedModel
from headrace.weights.gguf.header_reader import MAX_DEPTH, MAX_STRINGS
from headrace.weights.gguf.reader import MAX_KEYS, MAX_TENSORS, GgufFile
from headrace.weights.gguf.split_files import open_parts

RNG = np.random.default_rng(7)
VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "u8": Raw(0, b"\xff"),
    "i8": Raw(1, b"\xff"),
    "u16": Raw(2, b"\xff\xff"),
    "i16": Raw(3, b"\xff\xff"),
    "u32": 2**32 - 1,
    "i32": -1,
    "f32": 0.5,
    "yes": True,
    "text": "Grüße, 水",
    "u64": Raw(10, b"\xff" * 8),
    "i64": Raw(11, b"\xff" * 8),
    "f64": Raw(12, struct.pack("<d", 1e300)),
    "tokens": ["a", "", "水" * 100],
    "none": [],
    "flags": np.array([True, False]),
    **{
        f"array {t}": np.arange(3, dtype=t)
        for t in ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u8", "i8", "f8")
    },
    "nested": [["x", "y"], [], ["z"]],
}
MATRIX = RNG.standard_normal((3, 64)).astype(np.float32)
TENSORS = {
    "vector": encode(MATRIX[0], "F32"),
    "matrix": encode(MATRIX, "Q8_0"),
    "halves": encode(MATRIX.reshape(2, 3, 32), "F16"),
    "scalar": Stored("F32", (), struct.pack("<f", 3)),
    "empty": Stored("F32", (0, 5), b""),
}
SMALL = {"general.architecture": "llama", "n": [["a"], ["b"]], "flag": True, "v": np.arange(3, dtype="f4")}


def write(folder: Path, data: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_of_value(tmp_path: Path, version: int) -> None:
    with GgufFile(write(tmp_path, gguf_bytes(VALUES, TENSORS, version=version))) as file:
        found = {key: plain(value) for key, value in file.metadata.items()}
        assert file.version == version
    assert list(found) == list(VALUES)
    for key in ("general.architecture", "u32", "i32", "f32", "yes", "text", "tokens", "none", "nested"):
        assert found[key] == VALUES[key]
    assert [found[key] for key in ("u8", "i8", "u16", "i16", "u64", "i64")] == [
        255,
        -1,
        65535,
        -1,
        2**64 - 1,
        -1,
    ]
    assert found["f64"] == 1e300
    assert found["flags"] == [True, False]
    assert all(found[key] == [0, 1, 2] for key in VALUES if key.startswith("array"))


def test_tensors(tmp_path: Path) -> None:
    with GgufFile(write(tmp_path, gguf_bytes({"general.alignment": 64}, TENSORS))) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        assert shapes == {name: tensor.shape for name, tensor in TENSORS.items()}
        assert all(info.offset % 64 == 0 for info in file.tensors.values())
        values = {name: file.float32(info) for name, info in file.tensors.items()}
        with pytest.raises(ValueError, match="which has 204"):
            file.read_into(file.tensors["matrix"], 200, memoryview(bytearray(5)))
    assert (values["vector"] == MATRIX[0]).all()
    assert np.abs(values["matrix"] - MATRIX).max() < np.abs(MATRIX).max() / 127
    assert (values["halves"].reshape(-1) == MATRIX.astype(np.float16).reshape(-1)).all()
    assert values["scalar"].shape == ()
    assert values["scalar"] == 3
    assert values["empty"].shape == (0, 5)


def test_large_tensors_are_read_in_pieces(tmp_path: Path) -> None:
    values = RNG.standard_normal((700, 160)).astype(np.float32)
    blocks = values.reshape(-1, 32)
    codes = np.rint(blocks * 30).clip(-128, 127).astype(np.int8)
    scales = np.full((len(blocks), 1), 1 / 32, np.float16)
    data = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=1).tobytes() * 4
    with GgufFile(write(tmp_path, gguf_bytes({}, {"w": Stored("Q8_0", (2800, 160), data)}))) as file:
        found = file.float32(file.tensors["w"])
    assert (found == np.tile(codes.reshape(700, 160) / np.float32(32), (4, 1))).all()


def test_gguf_reads_what_the_tests_write(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the oracle is not here: pip install gguf")
    values = {key: value for key, value in VALUES.items() if key not in ("nested", "none")}
    tensors = {name: tensor for name, tensor in TENSORS.items() if tensor.shape not in ((), (0, 5))}
    path = write(tmp_path, gguf_bytes(values, tensors))
    theirs = gguf.GGUFReader(path)
    with GgufFile(path) as file:
        for key, value in file.metadata.items():
            assert theirs.fields[key].contents() == plain(value), key
        assert [tensor.name for tensor in theirs.tensors] == list(file.tensors)
        for tensor in theirs.tensors:
            info = file.tensors[tensor.name]
            assert (tensor.data_offset, tensor.n_bytes) == (info.offset, info.nbytes)
            assert tuple(reversed(tensor.shape.tolist())) == info.shape


def test_we_read_what_gguf_writes(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the oracle is not here: pip install gguf")
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_token_list(["a", "水", ""])
    writer.add_token_scores([0.5, -1.0, 2.0])
    writer.add_bool("flag", True)
    values = RNG.standard_normal((6, 512)).astype(np.float32)
    types = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q5_1", "Q8_0", "BF16")]
    for kind in types:
        writer.add_tensor(kind.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("F16", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        assert file.metadata["llama.context_length"] == 512
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "水", ""]
        assert plain(file.metadata["tokenizer.ggml.scores"]) == [0.5, -1.0, 2.0]
        assert file.metadata["flag"] is True
        for kind in types:
            wanted = gguf.dequantize(gguf.quantize(values, kind), kind)
            assert (file.float32(file.tensors[kind.name]) == wanted).all()
        assert (file.float32(file.tensors["F16"]) == values.astype(np.float16)).all()


def small_file() -> tuple[bytes, int]:
    """A file, and the length of its header."""
    data = gguf_bytes(SMALL, {"vector": TENSORS["vector"], "matrix": TENSORS["matrix"]})
    return data, len(data) - 256 - 224  # 256 of the vector, 204 of the matrix in units of 32


def open_and_read(path: Path) -> None:
    """What a loader does, to where a damaged file must have been noticed or does no harm."""
    with GgufFile(path) as file:
        dict(file.metadata)
        for info in file.tensors.values():
            file.float32(info)


def test_every_header_bit_flipped(tmp_path: Path) -> None:
    data, header = small_file()
    path = write(tmp_path, data)
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * header):
            os.pwrite(file.fileno(), bytes([data[bit // 8] ^ 1 << bit % 8]), bit // 8)
            try:
                open_and_read(path)
            except (CorruptFile, UnsupportedModel) as error:
                assert "model.gguf" in str(error) or "tensor" in str(error)
            os.pwrite(file.fileno(), data[bit // 8 : bit // 8 + 1], bit // 8)


def test_cut_at_every_byte(tmp_path: Path) -> None:
    data, _ = small_file()
    path = write(tmp_path, data)
    for length in reversed(range(len(data) - 20)):  # the last 20 bytes are padding, which need not be there
        os.truncate(path, length)
        with pytest.raises(CorruptFile, match=r"^model\.gguf"):
            open_and_read(path)


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    data, header = small_file()
    path = write(tmp_path, data)
    with GgufFile(path) as file:
        path.write_bytes(data[: header + 100])
        with pytest.raises(CorruptFile, match=r"cut short after it was opened"):
            file.float32(file.tensors["matrix"])


def string_array(count: int, data: bytes = b"") -> Raw:
    return Raw(9, struct.pack("<IQ", 8, count) + data)


def deep(levels: int) -> Raw:
    return Raw(9, struct.pack("<IQ", 9, 1) * levels + struct.pack("<IQ", 0, 0))


HOSTILE_VALUES: dict[str, tuple[Raw, str]] = {
    "type": (Raw(13, b"x" * 8), "type 13, 0 to 12 expected"),
    "element type": (Raw(9, struct.pack("<IQ", 13, 1)), "element type 13, 0 to 12 expected"),
    "boolean": (Raw(7, b"\2"), "a boolean"),
    "booleans": (Raw(9, struct.pack("<IQ", 7, 2) + b"\1\2"), "booleans expected"),
    "text": (Raw(8, text(b"\xff")), "not UTF-8"),
    "texts": (string_array(2, text("a") + text(b"\xff")), "string 1 is not UTF-8"),
    "long text": (Raw(8, struct.pack("<Q", 2**63) + b"x" * 64), "at most 67,108,864 expected"),
    "text past the end": (Raw(8, struct.pack("<Q", 100_000) + b"x" * 64), "the file ends at"),
    "long texts": (string_array(1, struct.pack("<Q", 2**64 - 1)), "the file ends at"),
    "too many strings": (string_array(MAX_STRINGS + 1), "strings; at most 700,000"),
    "more strings than bytes": (string_array(1000), "of 8 bytes or more expected"),
    "huge count of strings": (string_array(2**63), "strings; at most"),
    "huge array": (Raw(9, struct.pack("<IQ", 12, 2**63)), "the file ends at"),
    "overflowing array": (Raw(9, struct.pack("<IQ", 12, 2**61)), "the file ends at"),
    "many arrays": (Raw(9, struct.pack("<IQ", 9, 2**63)), "nests 9,223,372,036,854,775,808 arrays"),
    "deep arrays": (deep(MAX_DEPTH), f"at depth {MAX_DEPTH}"),
    "very deep arrays": (deep(100_000), f"at depth {MAX_DEPTH}"),
}


@pytest.mark.parametrize("name", HOSTILE_VALUES)
def test_hostile_values(tmp_path: Path, name: str) -> None:
    value, message = HOSTILE_VALUES[name]
    path = write(tmp_path, gguf_bytes({"key": value}, {}))
    with pytest.raises(CorruptFile, match=rf"^model\.gguf.*{message}"):
        open_and_read(path)


def vector(*, shape: tuple[int, ...] = (8,), offset: int | None = None, kind: str | int = "F32") -> Stored:
    return Stored(kind, shape, bytes(32), offset)


HOSTILE_TENSORS: dict[str, tuple[list[tuple[str, Stored]], str]] = {
    "two of a name": ([("a", vector()), ("a", vector())], "two tensors 'a'"),
    "overlap": ([("a", vector(shape=(16,))), ("b", vector())], "'b' begins at 32 inside another"),
    "the same place": ([("a", vector()), ("b", vector(offset=0))], "inside another"),
    "past the end": ([("a", vector(offset=64))], "the file ends at"),
    "negative offset": ([("a", vector(offset=-32))], "the file ends at"),
    "unaligned": ([("a", vector(offset=8)), ("b", vector())], "a multiple of 32 expected"),
    "huge": ([("a", vector(shape=(2**62, 2)))], r"more than 2\^63 entries"),
    "overflowing": ([("a", vector(shape=(2**32, 2**32, 1, 8)))], r"more than 2\^63 entries"),
    "just below": ([("a", vector(shape=(2**62,)))], "the file ends at"),
    "five dimensions": ([("a", vector(shape=(1, 1, 1, 1, 8)))], "5 dimensions, at most 4"),
    "not whole blocks": ([("a", vector(kind="Q8_0"))], r"have \(8,\) entries, a multiple of 32"),
    "long name": ([("a" * 65, vector())], "has 65 bytes, at most 64"),
}


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
def test_hostile_tensors(tmp_path: Path, name: str) -> None:
    tensors, message = HOSTILE_TENSORS[name]
    with pytest.raises(CorruptFile, match=rf"^model\.gguf, byte .*{message}"):
        GgufFile(write(tmp_path, gguf_bytes({}, tensors)))


@pytest.mark.parametrize("name", HOSTILE_VALUES)
def test_hostile_values_take_no_memory(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, gguf_bytes({"key": HOSTILE_VALUES[name][0]}, {}))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile):
            open_and_read(path)
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size + (1 << 20)
    finally:
        tracemalloc.stop()


def test_unknown_types_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModel, match=r"'a' has the type number 36, .* quantize the model as one of F32"
    ):
        GgufFile(write(tmp_path, gguf_bytes({}, {"a": vector(kind=36)})))
    with pytest.raises(UnsupportedModel, match="version 1;"):
        GgufFile(write(tmp_path, gguf_bytes({}, {}, version=1)))
    with pytest.raises(UnsupportedModel, match="version 4;"):
        GgufFile(write(tmp_path, gguf_bytes({}, {}, version=4)))
    with pytest.raises(UnsupportedModel, match="big-endian numbers;"):
        GgufFile(write(tmp_path, gguf_bytes({}, {}, version=3 << 24)))


HEADERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "magic": (lambda: b"GGML" + bytes(64), "begins with b'GGML'"),
    "nothing": (lambda: b"", "the file ends at 0"),
    "keys": (lambda: gguf_bytes({}, {}, counts=(0, MAX_KEYS + 1)), "announces 4,097 keys"),
    "many keys": (lambda: gguf_bytes({}, {}, counts=(0, 2**63)), "announces 9,223,372,036,854,775,808 keys"),
    "tensors": (lambda: gguf_bytes({}, {}, counts=(MAX_TENSORS + 1, 0)), "announces 8,193 tensors"),
    "100,000 tensors": (
        lambda: gguf_bytes({}, [(f"t{index}", Stored("F32", (8,), b"", 0)) for index in range(100_000)]),
        "announces 100,000 tensors",
    ),
    "missing keys": (lambda: gguf_bytes({}, {}, counts=(0, 10)), "the file ends at"),
    "missing tensors": (lambda: gguf_bytes({}, {}, counts=(10, 0)), "the file ends at"),
    "key twice": (lambda: gguf_bytes([("a", 1), ("a", 1)], {}), "'a' is there twice"),
    "long key": (lambda: gguf_bytes({"k" * 65_536: 1}, {}), "has 65,536 bytes, at most 65,535"),
    **{
        f"alignment {wrong!r}": (
            lambda wrong=wrong: gguf_bytes({"general.alignment": wrong}, {}),
            "power of two",
        )
        for wrong in (0, 33, -32, "32", 32.0, True)
    },
}


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_headers(tmp_path: Path, name: str) -> None:
    make, message = HEADERS[name]
    with pytest.raises(CorruptFile, match=rf"^model\.gguf, byte .*{message}"):
        GgufFile(write(tmp_path, make()))


def test_long_string_arrays_cross_reads(tmp_path: Path) -> None:
    """The header is read in pieces of 1 MiB: strings across their borders, and one longer than a piece."""
    strings = [f"{index}" * (index % 40) for index in range(60_000)] + ["x" * (3 << 20), "last"]
    path = write(tmp_path, gguf_bytes({"s": strings, "after": 5}, {}))
    with GgufFile(path) as file:
        assert file.metadata["s"] == strings
        assert file.metadata["after"] == 5


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CorruptFile, match="not a regular file"):
        GgufFile(tmp_path / "pipe.gguf")


# --- split models


def split(folder: Path, changes: Mapping[int, Mapping[str, Any]] | None = None, count: int = 3) -> list[Path]:
    paths: list[Path] = []
    for number in range(count):
        keys = {"split.no": number, "split.count": count, "split.tensors.count": count}
        data = gguf_bytes(keys | dict((changes or {}).get(number, {})), {f"t{number}": vector()})
        paths.append(write(folder, data, f"m-{number + 1:05}-of-{count:05}.gguf"))
    return paths


def test_all_parts_are_opened_from_any(tmp_path: Path) -> None:
    paths = split(tmp_path)
    for path in paths:
        parts = open_parts(path)
        assert [part.path for part in parts] == paths
        assert [list(part.tensors) for part in parts] == [["t0"], ["t1"], ["t2"]]
        for part in parts:
            part.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({1: {"split.no": 2}}, "'split.no' is 2, 1, as in its name"),
        ({2: {"split.count": 4}}, "'split.count' is 4, 3, as in its name"),
        ({0: {"split.tensors.count": 4}}, "hold 3 tensors, 4 expected"),
        ({0: {"split.count": "3"}}, "'split.count' is '3', an integer expected"),
        ({0: {"split.count": 65_535}}, "must end in -00001-of-65535"),
    ],
)
def test_parts_that_do_not_agree(tmp_path: Path, changes: Any, message: str) -> None:
    paths = split(tmp_path, changes)
    with pytest.raises(CorruptFile, match=message):
        open_parts(paths[0])


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].unlink()
    with pytest.raises(CorruptFile, match=r"m-00002-of-00003\.gguf is missing"):
        open_parts(paths[2])
    paths[0].rename(tmp_path / "other.gguf")
    with pytest.raises(CorruptFile, match=r"must end in -00001-of-00003\.gguf"):
        open_parts(tmp_path / "other.gguf")


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    paths = split(tmp_path)
    data = gguf_bytes({"split.no": 1, "split.count": 3}, {"t0": vector()})
    paths[1].write_bytes(data)
    with pytest.raises(CorruptFile, match="has 't0', which an earlier part has too"):
        open_parts(paths[0])
