"""Turns the hub client's progress bars into calls of (bytes so far, bytes known of)."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any


class _Nowhere(io.TextIOBase):
    def write(self, text: str, /) -> int:
        return len(text)


def bar_class(progress: Callable[[int, int], None]) -> Any:
    """A subclass of tqdm for snapshot_download's `tqdm_class` that prints nothing.

    The client opens one bar for bytes received and one for bytes written (older versions: one for each
    file), and the total of the first is only an estimate; hence the largest count and the smallest total.
    """
    from tqdm.std import tqdm

    base: Any = tqdm
    bars: list[Any] = []
    lock = threading.Lock()

    class Bar(base):
        monitor_interval = 0  # no thread that would outlive the download

        def __init__(self, *args: Any, **options: Any) -> None:
            options = {key: value for key, value in options.items() if key not in ("name", "disable")}
            above: Any = super()
            above.__init__(*args, **options, file=_Nowhere())
            self.counts_bytes = options.get("unit") == "B"
            if self.counts_bytes:
                bars.append(self)

        def update(self, n: float | None = 1) -> None:
            above: Any = super()
            above.update(n)
            if self.counts_bytes:
                with lock:
                    total = min(int(bar.total or 0) for bar in bars)
                    progress(min(total, max(int(bar.n) for bar in bars)), total)

    return Bar
