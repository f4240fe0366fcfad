"""Files of packed weights: a header that says what they hold, then the bytes as they lie in memory.

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
from numpy.typing import NDArray

from headrace import _native

_CHUNK_BYTES = 16 << 20
_READERS = 4  # enough for the queue of a fast disk, and for copying out of the page cache

log = logging.getLogger("headrace.weights")


def read(
    path: Path, header: bytes, payload_bytes: int, progress: Callable[[int, int], None]
) -> NDArray[np.uint8] | None:
    """The payload in a new buffer on huge pages; None, and a line in the log, if the file is not exactly
    `header` and a payload of that size."""
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
    except OSError as error:
        payload, fault = None, error.strerror
    finally:
        os.close(file)
    if payload is None:
        log.warning("the cached weights are not used (%s): packing them again", fault or "cut short")
    return payload


def write(path: Path, header: bytes, payload: NDArray[np.uint8]) -> bool:
    """Puts the file in place, or leaves nothing, logs why and gives False. Of several programs one writes."""
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
        return False
    return True


def _fault(file: int, header: bytes, payload_bytes: int) -> str | None:
    size = os.fstat(file).st_size
    if size != len(header) + payload_bytes:
        return f"{size:,} bytes long instead of {len(header) + payload_bytes:,}"
    if os.pread(file, len(header), 0) != header:
        return "the header is another one"
    return None


def _payload(
    file: int, start: int, size: int, progress: Callable[[int, int], None]
) -> NDArray[np.uint8] | None:
    payload = _native.allocate(size)

    def fill(offset: int) -> int:
        part = payload[offset : offset + _CHUNK_BYTES].data
        done = 0
        while done < part.nbytes:
            count = os.preadv(file, [part[done:]], start + offset + done)
            if count == 0:
                break
            done += count
        return done

    done = 0
    with ThreadPoolExecutor(_READERS, "headrace-read") as readers:
        for count in readers.map(fill, range(0, size, _CHUNK_BYTES)):
            done += count
            progress(done, size)
    return payload if done == size else None


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
        for part in (memoryview(header), payload.data):
            while part:
                part = part[os.write(file, part[:_CHUNK_BYTES]) :]
        os.fsync(file)
        temporary.replace(path)
    except BaseException:  # Ctrl-C too leaves no partial file
        temporary.unlink(missing_ok=True)
        raise
