"""How much memory this machine, or the container, still has."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def free_memory_bytes() -> int:
    """Memory that can still be used without swapping, within the container's limit."""
    free = psutil.virtual_memory().available
    if CGROUP_LIMIT.exists():
        limit = CGROUP_LIMIT.read_text().strip()
        if limit.isdigit():
            free = min(free, int(limit) - psutil.Process().memory_info().rss)
    return free
