"""The processor's caches: what fits there is not read from memory again."""

from __future__ import annotations

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_ASSUMED_BYTES = 32 << 20  # where the system does not tell
LEAST_CACHES = 4
"""Weights of fewer caches than these are read from memory only in part: a share would mean nothing."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_FIRST_LEVEL = 2  # smaller ones are a few percent of these


def cache_bytes(cpus: Path = _CPUS) -> int:
    """Bytes of the second- and third-level caches of the cores that this process may run on."""
    sizes: dict[tuple[str, str, str], int] = {}
    for number in _usable(cpus):
        for folder in (cpus / f"cpu{number}" / "cache").glob("index*"):
            try:
                level, kind, size, shared = (
                    (folder / name).read_text().strip()
                    for name in ("level", "type", "size", "shared_cpu_list")
                )
                if int(level) >= _FIRST_LEVEL and kind != "Instruction":
                    sizes[level, kind, shared] = int(size[:-1]) * _UNITS[size[-1]]
            except (OSError, ValueError, KeyError, IndexError):
                continue
    return sum(sizes.values()) or _ASSUMED_BYTES


def _usable(cpus: Path) -> list[int]:
    if cpus == _CPUS and hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return sorted(int(path.name[3:]) for path in cpus.glob("cpu[0-9]*") if path.name[3:].isdigit())
