"""Files of packed weights: a header that says what they hold, the bytes as they lie in memory, checksums.

After the bytes come the checksums of their pieces of PIECE_BYTES, as little-endian u64.

A file appears under its name only when it is complete and on the disk: it is written beside it, synced
and renamed. Whatever else is found there is not used, and nothing that goes wrong here stops a load.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace import _native

PIECE_BYTES = 1 << 20  # small enough to be in the core's own cache when it is summed
_CHUNK_BYTES = 16 << 20
_READERS = 4  # enough for the queue of a fast disk, and for copying out of the page cache

log = logging.getLogger("headrace.weights")


class CacheTroubles(Struct):
    """Counts of files that could not be written, and of files that were damaged and not used."""

    failures: int = 0
    damages: int = 0


def read(
    path: Path,
    header: bytes,
    payload_bytes: int,
    progress: Callable[[int, int], None],
    troubles: CacheTroubles,
) -> NDArray[np.uint8] | None:
    """The payload in a new buffer on huge pages; None, and a line in the log, if the file is not exactly
    `header` and a payload of that size with its checksums."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("the cached weights cannot be read (%s): packing them again", error.strerror)
        return None
    try:
        fault = _fault(file, header, payload_bytes)
        payload = None if fault else _payload(file, len(header), payload_bytes, progress)
    except _Damaged as damaged:
        payload, fault = None, str(damaged)
    except OSError as error:
        payload, fault = None, error.strerror
    finally:
        os.close(file)
    if payload is None:
        troubles.damages += 1
        log.warning("the cached weights are not used (%s): packing them again", fault or "cut short")
    return payload


def write(path: Path, header: bytes, payload: NDArray[np.uint8], troubles: CacheTroubles) -> None:
    """Puts the file in place, or leaves nothing and logs why. Of several programs one writes."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if _locked(file, temporary):
                _publish(file, temporary, path, header, payload)
        finally:
            os.close(file)
    except OSError as error:
        log.warning(
            "the packed weights are not cached (%s), so that the next start packs them again: "
            "free %s MB in the cache folder or choose another",
            error.strerror,
            f"{(len(header) + payload.nbytes) / 1e6:,.1f}",
        )
        troubles.failures += 1


def _fault(file: int, header: bytes, payload_bytes: int) -> str | None:
    size = os.fstat(file).st_size
    expected = len(header) + payload_bytes + 8 * _pieces(payload_bytes)
    if size != expected:
        return f"{size:,} bytes long instead of {expected:,}"
    if os.pread(file, len(header), 0) != header:
        return "the header is another one"
    return None


def _payload(
    file: int, start: int, size: int, progress: Callable[[int, int], None]
) -> NDArray[np.uint8] | None:
    sums = np.empty(_pieces(size), "<u8")
    if _fill(file, sums.view(np.uint8), start + size) < sums.nbytes:
        return None
    payload = _native.allocate(size)

    def fill(offset: int) -> int:
        done = 0
        for at in range(offset, min(offset + _CHUNK_BYTES, size), PIECE_BYTES):
            piece = payload[at : at + PIECE_BYTES]
            count = _fill(file, piece, start + at)
            if count == piece.nbytes and _native.checksum(piece) != sums[at // PIECE_BYTES]:
                raise _Damaged(f"the checksum of bytes {at:,} to {at + count:,} is wrong")
            done += count
        return done

    done = 0
    with ThreadPoolExecutor(_READERS, "headrace-read") as readers:
        for count in readers.map(fill, range(0, size, _CHUNK_BYTES)):
            done += count
            progress(done, size)
    return payload if done == size else None


class _Damaged(Exception):
    """The bytes are not those that were written."""


def _pieces(payload_bytes: int) -> int:
    return -(-payload_bytes // PIECE_BYTES)


def _fill(file: int, out: NDArray[np.uint8], offset: int) -> int:
    """Read as many bytes as `out` has, fewer at the end of the file; returns how many."""
    done = 0
    while done < out.nbytes:
        count = os.preadv(file, [out.data[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def _checksums(payload: NDArray[np.uint8]) -> NDArray[np.uint64]:
    starts = range(0, payload.nbytes, PIECE_BYTES)
    return np.array([_native.checksum(payload[at : at + PIECE_BYTES]) for at in starts], "<u8")


def _locked(file: int, temporary: Path) -> bool:
    """Whether the temporary file is ours: no other process writes it, or has just renamed or removed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return temporary.stat().st_ino == os.fstat(file).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _publish(file: int, temporary: Path, path: Path, header: bytes, payload: NDArray[np.uint8]) -> None:
    try:
        os.ftruncate(file, 0)  # what a killed process may have left
        for part in (memoryview(header), payload.data, _checksums(payload).view(np.uint8).data):
            while part:
                part = part[os.write(file, part[:_CHUNK_BYTES]) :]
        os.fsync(file)
        temporary.replace(path)
    except BaseException:  # Ctrl-C too leaves no partial file
        temporary.unlink(missing_ok=True)
        raise
