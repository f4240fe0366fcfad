"""Shared by tests of the command line: a command's outcome, and the type of functions that run one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

Headrace = Callable[..., "subprocess.CompletedProcess[bytes]"]


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str
