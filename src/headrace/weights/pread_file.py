"""A regular file that is read by position, and never mapped (docs/decisions/0001).

A page of a mapping that lies beyond the end of a file cut short meanwhile kills the process with SIGBUS, and
no check before the access closes that window. Every weight is repacked anyway: a mapping would save no copy.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.errors import CorruptFile
from headrace.weights.closeable import Closeable


class PositionedFile(Closeable):
    """An open file. `size` and `stamp` (size, mtime_ns) are those of the time of opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # O_NONBLOCK: a named pipe must not hang the open.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        self.size = status.st_size
        self.stamp = (status.st_size, status.st_mtime_ns)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise CorruptFile(f"{path.name} is not a regular file: give the path of a model file")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read_into(self, offset: int, out: memoryview, what: str) -> None:
        """Bytes [offset, offset + len(out)) into `out`, a flat view of bytes; `what` names them in errors.

        Raises CorruptFile where the file became shorter or cannot be read.
        """
        done = 0
        while done < out.nbytes:
            # One call reads at most 2 GiB on Linux, so a short read alone is no error.
            try:
                count = os.preadv(self._fd, [out[done:]], offset + done)
            except OSError as error:
                raise CorruptFile(
                    f"{self.path.name} cannot be read ({error.strerror}): check the disk"
                ) from None
            if count == 0:
                raise CorruptFile(
                    f"{self.path.name} ends at byte {offset + done:,} while {what} reaches to byte "
                    f"{offset + out.nbytes:,}: the file was cut short after it was opened; fetch it again"
                )
            done += count
