"""Figures with matplotlib, an optional dependency."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from headrace.errors import UsageError


def check_matplotlib(otherwise: str = "") -> None:
    """Raise UsageError if it is not installed; `otherwise` is an alternative remedy for the message."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"--png needs matplotlib: pip install 'headrace[bench]'{otherwise}", param="png")


def new_figure(width_inches: float, height_inches: float) -> Any:
    """An empty figure. Raises UsageError without matplotlib."""
    check_matplotlib()
    drawing: Any = importlib.import_module("matplotlib.figure")
    return drawing.Figure(figsize=(width_inches, height_inches), layout="constrained")
