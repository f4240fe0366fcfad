"""The disk cache of packed weights, and whatever can go wrong with it."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import SHAPES, WANTED

from headrace import _native
from headrace.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.weights.packing import packed_weights as packed
from headrace.weights.packing.packed_cache import CacheTroubles
from headrace.weights.packing.packed_weights import PackedWeight, WeightSpec, load_packed, predicted_bytes


def assert_same(found: dict[str, PackedWeight], expected: dict[str, PackedWeight]) -> None:
    assert set(found) == set(expected)
    for name, weight in found.items():
        other = expected[name]
        assert (weight.format, weight.n, weight.k) == (other.format, other.n, other.k)
        np.testing.assert_array_equal(weight.data, other.data)


def cache_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    assert path.suffix == ".packed"
    return path


def test_second_load_comes_from_the_cache(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path, packs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.weights.packing.packed_cache._CHUNK_BYTES", 10000)
    monkeypatch.setattr("headrace.weights.packing.packed_cache.PIECE_BYTES", 5000)
    first = load_packed(checkpoint, WANTED, pool, cache=cache)
    assert len(packs) == 4
    path = cache_file(cache)
    steps: list[tuple[int, int]] = []
    second = load_packed(
        checkpoint, WANTED[::-1], pool, cache=cache, progress=lambda *step: steps.append(step)
    )
    assert len(packs) == 4
    assert_same(second, first)
    assert steps[-1] == (predicted_bytes(WANTED), predicted_bytes(WANTED)) and len(steps) > 5
    content = path.read_bytes()
    total, pieces = predicted_bytes(WANTED), -(-predicted_bytes(WANTED) // 5000)
    assert content[:8] == b"HEADRACE"
    assert len(content) == int.from_bytes(content[16:24], "little") + 8 * pieces
    assert len(content) % 4096 == 8 * pieces % 4096 and len(content) > total
    described = json.loads(content[24 : 24 + int.from_bytes(content[12:16], "little")])
    assert described["checkpoint"] == checkpoint.fingerprint
    assert [weight["name"] for weight in described["weights"]] == sorted(SHAPES)
    assert path.stat().st_mode & 0o777 == 0o600
    bases = {weight.data.base.ctypes.data for weight in second.values()}
    assert len(bases) == 1  # one buffer


def test_another_question_gets_another_file(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path, packs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_packed(checkpoint, WANTED, pool, cache=cache)
    load_packed(checkpoint, WANTED[:2], pool, cache=cache)
    load_packed(checkpoint, [WeightSpec("a", 100, 96, "bf16")], pool, cache=cache)
    load_packed(checkpoint, [WeightSpec("a", 100, 96, "f16")], pool, cache=cache)
    monkeypatch.setattr(packed, "LAYOUT_VERSION", packed.LAYOUT_VERSION + 1)
    load_packed(checkpoint, [WeightSpec("a", 100, 96, "f16")], pool, cache=cache)
    os.utime(checkpoint.folder / "model.safetensors", ns=(0, 0))
    with open_checkpoint(checkpoint.folder) as touched:
        load_packed(touched, [WeightSpec("a", 100, 96, "f16")], pool, cache=cache)
    assert len(packs) == 4 + 2 + 1 + 1 + 1 + 1
    assert len(list(cache.iterdir())) == 6


def damage_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(40)
        byte = file.read(1)
        file.seek(40)
        file.write(bytes([byte[0] ^ 1]))


def damage_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff")


def change(path: Path, offset: int, change: Callable[[bytes], bytes]) -> None:
    """Change 100 bytes of the file, counted from its end where `offset` is negative."""
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        part = file.read(100)
        file.seek(-len(part), os.SEEK_CUR)
        file.write(change(part))


def zero_weights(path: Path) -> None:
    """As after a crash of a file system: the size is right, what is in it is not."""
    with path.open("r+b") as file:
        head = file.read(24)
        start = int.from_bytes(head[16:24], "little") - predicted_bytes(WANTED)
        file.seek(start)
        file.write(bytes(predicted_bytes(WANTED)))


DAMAGE = {
    "header": (damage_header, "header is another one"),
    "version": (damage_version, "header is another one"),
    "zeros": (zero_weights, "checksum of bytes 0 to"),
    "a bit": (lambda path: change(path, 40_000, lambda part: bytes([part[0] ^ 1]) + part[1:]), "checksum of"),
    "a checksum": (lambda path: change(path, -3, lambda part: bytes(byte ^ 4 for byte in part)), "checksum"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes long instead of"),
    "cut in the header": (lambda path: os.truncate(path, 30), "bytes long instead of"),
    "empty": (lambda path: os.truncate(path, 0), "0 bytes long instead of"),
    "longer": (lambda path: os.truncate(path, path.stat().st_size + 1), "bytes long instead of"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_file_is_not_used_and_replaced(
    checkpoint: Checkpoint,
    pool: _native.Pool,
    cache: Path,
    packs: list[int],
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    first = load_packed(checkpoint, WANTED, pool, cache=cache)
    good = cache_file(cache).read_bytes()
    damage, reason = DAMAGE[kind]
    damage(cache_file(cache))
    with caplog.at_level(logging.WARNING, "headrace.weights"):
        troubles = CacheTroubles()
        assert_same(load_packed(checkpoint, WANTED, pool, cache=cache, troubles=troubles), first)
    assert reason in caplog.text
    assert (troubles.damages, troubles.failures, len(packs)) == (1, 0, 8)
    assert cache_file(cache).read_bytes() == good


def test_file_that_shrinks_while_it_is_read(
    checkpoint: Checkpoint,
    pool: _native.Pool,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: Any,
) -> None:
    first = load_packed(checkpoint, WANTED, pool, cache=cache)
    path = cache_file(cache)
    allocate = _native.allocate

    def shrink(nbytes: int) -> Any:
        os.truncate(path, path.stat().st_size - 5000)
        monkeypatch.setattr(_native, "allocate", allocate)
        return allocate(nbytes)

    monkeypatch.setattr(_native, "allocate", shrink)
    assert_same(load_packed(checkpoint, WANTED, pool, cache=cache), first)
    assert "cut short" in caplog.text


def test_what_a_killed_process_left_is_not_read_and_written_over(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path, packs: list[int]
) -> None:
    load_packed(checkpoint, WANTED, pool, cache=cache)
    path = cache_file(cache)
    good = path.read_bytes()
    path.unlink()
    path.with_suffix(".tmp").write_bytes(good + b"more")
    load_packed(checkpoint, WANTED, pool, cache=cache)
    assert len(packs) == 8
    assert cache_file(cache).read_bytes() == good


@pytest.mark.parametrize("call", ["write", "fsync", "ftruncate"])
def test_full_disk_leaves_no_file_and_no_error(
    checkpoint: Checkpoint,
    pool: _native.Pool,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        found = load_packed(checkpoint, WANTED, pool, cache=cache)
    assert "No space left on device" in caplog.text and "free 0.1 MB" in caplog.text
    assert list(cache.iterdir()) == []
    assert_same(load_packed(checkpoint, WANTED, pool, cache=cache), found)


def test_real_file_size_limit(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        found = load_packed(checkpoint, WANTED, pool, cache=cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert set(found) == set(SHAPES)
    assert "File too large" in caplog.text
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("call", ["preadv", "pread"])
def test_unreadable_disk(
    checkpoint: Checkpoint,
    pool: _native.Pool,
    cache: Path,
    packs: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    first = load_packed(checkpoint, WANTED, pool, cache=cache)
    read = getattr(os, call)

    def fail(file: int, *args: Any) -> Any:
        if Path(f"/proc/self/fd/{file}").readlink().suffix == ".packed":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, *args)

    monkeypatch.setattr(os, call, fail)
    assert_same(load_packed(checkpoint, WANTED, pool, cache=cache), first)
    assert "Input/output error" in caplog.text and len(packs) == 8


def test_interrupted_write_leaves_no_file(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_packed(checkpoint, WANTED, pool, cache=cache)
    assert list(cache.iterdir()) == []


def test_unusable_cache_folder(
    checkpoint: Checkpoint, pool: _native.Pool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert set(load_packed(checkpoint, WANTED, pool, cache=tmp_path / "file")) == set(SHAPES)
    assert "cannot be read (Not a directory)" in caplog.text and "not cached" in caplog.text
    assert (tmp_path / "file").read_text() == ""


def test_file_written_by_another_process_is_left_to_it(
    checkpoint: Checkpoint, pool: _native.Pool, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_packed(checkpoint, WANTED, pool, cache=cache)
    path = cache_file(cache)
    path.unlink()
    with path.with_suffix(".tmp").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        load_packed(checkpoint, WANTED, pool, cache=cache)
        assert [left.suffix for left in cache.iterdir()] == [".tmp"]
        assert os.fstat(other.fileno()).st_size == 0
    assert caplog.text == ""


WRITER = """
import sys
from pathlib import Path
from headrace import _native
from headrace.weights.checkpoint import open_checkpoint
from headrace.weights.packing.packed_weights import WeightSpec, load_packed
pool = _native.Pool(1)
sys.stdin.readline()
with open_checkpoint(Path(sys.argv[1])) as checkpoint:
    for _ in range(20):
        wanted = [WeightSpec("a", 100, 96, "f32"), WeightSpec("embed", 65, 64, "bf16")]
        found = load_packed(checkpoint, wanted, pool, cache=Path(sys.argv[2]))
        for path in Path(sys.argv[2]).glob("*.packed"):
            path.unlink(missing_ok=True)
    print(hash(b"".join(weight.data.tobytes() for weight in found.values())))
"""


def test_concurrent_processes(checkpoint: Checkpoint, pool: _native.Pool, cache: Path) -> None:
    """Four processes write, read and delete the same file; each always gets the right weights."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", WRITER, str(checkpoint.folder), str(cache)]
    writers = [
        subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, stderr=-1, text=True)
        for _ in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    outputs = [writer.communicate(timeout=60) for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, outputs
    assert len({output for output, _ in outputs}) == 1
    assert {messages for _, messages in outputs} == {""}  # nobody ever saw a bad file
    assert list(cache.glob("*.tmp")) == []
