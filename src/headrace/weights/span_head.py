"""Which folders hold a model that finds entities by labels of the request."""

from __future__ import annotations

from pathlib import Path

from headrace.weights.gliner2_head import is_gliner2, read_gliner2_head
from headrace.weights.gliner_head import is_gliner, read_gliner_head
from headrace.weights.tagger_head import is_tagger, read_tagger_head


def has_span_head(folder: Path) -> bool:
    """Whether the folder is that of a tagger or of a GLiNER checkpoint, the first kind or the second."""
    return is_tagger(folder) or is_gliner(folder) or is_gliner2(folder)


def check_span_head(folder: Path, states: int) -> None:
    """Raises UnsupportedModel or CorruptFile where the folder has such a head, on an encoder with `states`
    numbers per token, that cannot be used: that shows when a model is loaded and not at its first request."""
    if is_gliner(folder):
        read_gliner_head(folder, states)
    elif is_tagger(folder):
        read_tagger_head(folder)
    elif is_gliner2(folder):
        read_gliner2_head(folder, states)
