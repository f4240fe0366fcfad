"""Figures of matplotlib, which is an extra."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from headrace.errors import UsageError


def check_matplotlib(otherwise: str = "") -> None:
    """Raises UsageError where it is not installed; `otherwise` is another remedy."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"--png needs matplotlib: pip install 'headrace[bench]'{otherwise}", param="png")


def new_figure(width_inches: float, height_inches: float) -> Any:
    """An empty figure. Raises UsageError without matplotlib."""
    check_matplotlib()
    drawing: Any = importlib.import_module("matplotlib.figure")
    return drawing.Figure(figsize=(width_inches, height_inches), layout="constrained")
