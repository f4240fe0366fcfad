"""Reads documents in processes under limits."""

from __future__ import annotations

import importlib.util

from headrace.config.extras import require
from headrace.isolation.child import IsolatedProcess, LimitExceeded, WorkFailed, WorkLost
from headrace.isolation.limits import ProcessLimits
from headrace.search.documents import DocumentFailed
from headrace.search.readers.kinds import KINDS, kind_of, reader_of
from headrace.search.readers.reading import DocumentText, ReadJob, decode_text, encode
from headrace.search.readers.worker import CLOCK_S

MAX_BYTES = 64 * 2**20
LIMITS = ProcessLimits(60.0, 2**30)


class DocumentReader:
    """Starts its process with the first document. Safe to share between threads."""

    def __init__(self, limits: ProcessLimits = LIMITS) -> None:
        self._limits = limits
        self._process = IsolatedProcess("headrace.search.readers.worker", _libraries)

    def read(self, name: str, data: bytes, kind: str | None = None) -> DocumentText:
        """The text of a document; its kind is that of the end of its name, else text.

        DocumentFailed names it and says why it cannot be read, ExtraMissing which extra its kind needs.
        """
        if len(data) > MAX_BYTES:
            raise DocumentFailed(f"{name} has {len(data):,} bytes, at most {MAX_BYTES:,} are read: split it")
        kind = kind or kind_of(name) or "text"
        reader = reader_of(kind)
        require(reader.extra, *reader.libraries)
        try:
            got = self._process.call(encode(ReadJob(kind, data)), self._limits, wait_s=CLOCK_S + 10)
        except LimitExceeded as error:
            raise DocumentFailed(
                f"{name} takes more than {error.what} to read: split it, or leave it out"
            ) from None
        except WorkLost:
            raise DocumentFailed(f"{name} was not read: its process was ended; ingest it again") from None
        except WorkFailed as error:
            raise DocumentFailed(f"{name} cannot be read: its reader failed ({error})") from None
        found = decode_text(got)
        if found.failure is not None:
            raise DocumentFailed(f"{name} cannot be read: {found.failure}")
        return found

    def close(self) -> None:
        """End the process."""
        self._process.close()


def _libraries() -> bytes:
    wanted = {library for kind in KINDS if kind != "office" for library in reader_of(kind).libraries}
    return " ".join(sorted(one for one in wanted if importlib.util.find_spec(one))).encode()
