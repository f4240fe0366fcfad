"""Batches prepared by other processes, for a device that consumes them faster than one process can draw."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch
from mixture import Batch, Draw

AHEAD_PER_WORKER = 4

DrawRequest = tuple[tuple[int, int], int, int]  # arguments of a Draw: key, number of windows, window length

# Data source of forked processes, which inherit it instead of receiving it.
_source: Draw | None = None


def drawn_ahead(draw: Draw, wanted: Sequence[DrawRequest], workers: int) -> Iterator[Batch]:
    """Yield `draw(key, windows, length)` for all requested batches, in order."""
    global _source
    _source = draw
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        ahead = AHEAD_PER_WORKER * workers
        pending = [pool.submit(_drawn, *one) for one in wanted[:ahead]]
        for one in [*wanted[ahead:], *[None] * len(pending)]:
            yield Batch(*(torch.from_numpy(part) for part in pending.pop(0).result()))
            if one is not None:
                pending.append(pool.submit(_drawn, *one))


def _drawn(key: tuple[int, int], windows: int, length: int) -> tuple[np.ndarray, ...]:
    assert _source is not None
    batch = _source(key, windows, length)
    return batch.tokens.numpy(), batch.documents.numpy(), batch.weights.numpy()
