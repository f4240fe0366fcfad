"""What a search for entities can be told, besides texts and labels."""

from __future__ import annotations

from typing import TypedDict, get_args

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.tasks.entity_windows import LongTexts
from headrace.tasks.token_labels import Aggregation

THRESHOLD = 0.5


class EntityKeywords(TypedDict, total=False):
    """Keywords of a search; see `Search`."""

    threshold: float | None
    flat_ner: bool
    multi_label: bool
    truncate: bool
    window: int | None
    stride: int | None
    aggregation: Aggregation | None
    priority: int
    deadline_s: float | None


class Search(Struct, frozen=True, kw_only=True):
    """`threshold` in (0, 1) is exceeded by every score; None: by 0.5, or of a model with labels of its own
    anything. Entities do not overlap; not `flat_ner`: one may lie inside another; `multi_label`: one may have
    several labels. `truncate`, `window` and `stride` as in `LongTexts`. `aggregation` says how a model that
    classifies tokens makes entities of them (None: "simple"). `priority` and `deadline_s` as in requests.

    Raises InvalidRequest, by name, for values that mean nothing.
    """

    threshold: float | None = None
    flat_ner: bool = True
    multi_label: bool = False
    truncate: bool = False
    window: int | None = None
    stride: int | None = None
    aggregation: Aggregation | None = None
    priority: int = 0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise InvalidRequest(
                f"threshold is {self.threshold}, it must be between 0 and 1", param="threshold"
            )
        if self.aggregation is not None and self.aggregation not in get_args(Aggregation):
            raise InvalidRequest(
                f"aggregation is {self.aggregation!r}, it must be one of {', '.join(get_args(Aggregation))}",
                param="aggregation",
            )
        _ = self.long_texts

    @property
    def least(self) -> float:
        """What every score exceeds, where a model scores spans."""
        return THRESHOLD if self.threshold is None else self.threshold

    @property
    def long_texts(self) -> LongTexts:
        """What becomes of long texts."""
        return LongTexts(self.truncate, self.window, self.stride)
