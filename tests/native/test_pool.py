"""The pool of threads from outside; what it computes is tested in C++ (native/tests/test_pool.cpp)."""

from __future__ import annotations

import subprocess
import sys

MANY = """
from headrace import _native
for _ in range(40_000):
    _native.Pool(3)
"""


def test_pools_end_while_their_threads_begin() -> None:
    """A thread that the destructor overtakes at its start must see that it is to stop.

    One that asked first whether to stop and then what it would wait for slept for ever; with 3 threads that
    happened about once in 10,000 pools. The sanitizers' builds are too slow to meet it. In a process of its
    own, so that a hang is a failure.
    """
    subprocess.run([sys.executable, "-c", MANY], check=True, timeout=120)
