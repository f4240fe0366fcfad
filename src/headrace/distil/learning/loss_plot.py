"""The loss of a run as a picture."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.bench.matplotlib_figure import new_figure

_SMOOTH = 20


def plot_losses(losses: Sequence[float], file: Path) -> None:
    """Each step's loss, and the mean of 20."""
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, linewidth=0.6, alpha=0.4, label="step")
    if len(losses) > _SMOOTH:
        smooth = np.convolve(losses, np.full(_SMOOTH, 1 / _SMOOTH), "valid")
        axes.plot(steps[_SMOOTH - 1 :], smooth, label=f"mean of {_SMOOTH}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per learned token")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(file, dpi=110)
