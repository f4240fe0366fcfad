"""Which folders hold a model that finds entities by labels of the request."""

from __future__ import annotations

from pathlib import Path

from headrace.weights.gliner_head import is_gliner
from headrace.weights.head import Head
from headrace.weights.tagger_head import is_tagger


def has_span_head(folder: Path) -> bool:
    """Whether the folder is that of a tagger or of a GLiNER checkpoint."""
    return is_tagger(folder) or is_gliner(folder)


def span_head(folder: Path) -> Head | None:
    """The head of such a folder, None for any other. Its weights are not read."""
    return Head(kind="spans") if has_span_head(folder) else None
