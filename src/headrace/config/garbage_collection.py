"""Settings of Python's garbage collector in processes that serve."""

from __future__ import annotations

import gc

_THRESHOLDS = (10_000, 20, 20)
"""Objects and collections between collections of each generation: a dozen requests make the 700 of Python's
own, and almost none of these is part of a cycle."""


def keep_present_objects() -> None:
    """Collect rarely from now on, and never look at the objects that are here: they stay."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
