"""Run as a script: limits this process, then becomes a program: `limited_exec.py BYTES FILES PROGRAM ARGS…`.

The limits of the kernel are inherited. On Linux the program ends with the thread that started it, even where
that is killed. Imports nothing of the package, so that it starts in milliseconds.
"""

import ctypes
import os
import resource
import signal
import sys

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def _limit(memory_bytes: int, files: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if sys.platform == "linux":  # elsewhere data is not limited by this
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    _limit(int(sys.argv[1]), int(sys.argv[2]))
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        sys.exit(f"{sys.argv[3]}: {error.strerror}")
