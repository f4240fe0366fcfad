"""What the tests of the command line share: a command's outcome, and the type of what runs one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

Headrace = Callable[..., "subprocess.CompletedProcess[bytes]"]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str
