"""Who holds money: a process of this machine, of which others can tell whether it still runs."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from headrace.struct_types import thread_safe

_PROC = Path("/proc")


class Holder(Struct, frozen=True):
    """A process: the machine's boot, the namespace in which `pid` is valid, and when it started, in ticks."""

    boot: str
    namespace: str
    pid: int
    started: str

    @property
    def text(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()


def this_process() -> Holder:
    """The process that calls."""
    return Holder(_boot(), _namespace(), os.getpid(), _started(os.getpid()))


def machine_s() -> float:
    """Seconds since the machine booted, asleep or not: nothing sets this clock, all processes share it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def has_ended(text: str, *, is_shared: bool = False) -> bool:
    """Whether a stored holder certainly runs no more. False where this cannot be known, as of another machine
    with which a store is shared."""
    try:
        holder = msgspec.json.decode(text.encode(), type=thread_safe(Holder))
    except msgspec.MsgspecError:
        return False
    if not holder.boot or not _boot():
        return False
    if holder.boot != _boot():
        return not is_shared
    known = holder.namespace and holder.started and holder.namespace == _namespace()
    return bool(known) and _started(holder.pid) != holder.started


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@cache
def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """The 22nd field of the process's stat; its name, the second, may have blanks and parentheses."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
