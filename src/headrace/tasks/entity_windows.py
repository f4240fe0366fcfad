"""Texts that are longer than what a model reads at once: refused, cut, or read in windows that overlap."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from headrace.errors import ContextLengthExceeded, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.tasks.entity_finders.finder import Units
from headrace.tasks.task_limits import WindowBudget

STRIDE = 32


class LongTexts(Struct, frozen=True):
    """What becomes of long texts. `window` and `stride` are in tokens: the longest piece that is read at once
    (None: what the model reads best, or what fits), and how many of its last tokens the next piece begins
    with. Both None: the text is refused, or with `truncate` cut. `stride` is as in `transformers`' pipelines.
    """

    truncate: bool = False
    window: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InvalidRequest(f"window is {self.window}, it must be at least 1 token", param="window")
        if self.stride is not None and self.stride < 0:
            raise InvalidRequest(f"stride is {self.stride}, it must not be negative", param="stride")
        if self.window is not None and (self.stride or 0) >= self.window:
            raise InvalidRequest(
                f"stride is {self.stride}, window {self.window}: windows overlap by fewer tokens",
                param="stride",
            )
        if self.in_windows and self.truncate:
            raise InvalidRequest(
                "truncate cuts long texts, window and stride read them whole: give one of them",
                param="truncate",
            )

    @property
    def in_windows(self) -> bool:
        """Whether long texts are read in windows."""
        return self.window is not None or self.stride is not None


class TextLimits(Struct, frozen=True):
    """What a model reads at once of a text: `tokens`, beside the `labels_tokens` of labels and marks, and
    `words` (None: any number); a piece of a long text has `window` tokens unless the request says."""

    tokens: int
    labels_tokens: int
    words: int | None
    window: int | None = None


def pieces(
    units: Units,
    index: int,
    limits: TextLimits,
    long: LongTexts,
    call: CallContext,
    budget: WindowBudget | None = None,
) -> list[tuple[int, int]]:
    """The units [first, end) of each piece that text `index` is read in; windows are of the `budget`.

    Raises ContextLengthExceeded where it does not fit and nothing else was asked for.
    """
    if not len(units):
        return []
    tokens = _piece_tokens(limits, long)
    if long.window is not None and long.window > tokens:
        call.warn("window", f"{long.window:,} tokens of text {index} do not fit at once, {tokens:,} do")
    fits = _fitting(units, 0, tokens, limits.words)
    if fits == len(units):
        return [(0, fits)]
    if long.in_windows:
        stride = min(STRIDE, tokens // 4) if long.stride is None else long.stride
        if stride >= tokens:
            raise InvalidRequest(
                f"stride is {stride:,}, a window has {tokens:,} tokens: windows overlap by fewer",
                param="stride",
            )
        if any(end - start > tokens for start, end in pairwise(units.starts)):
            call.warn(
                "window", f"a word of text {index} has more tokens than a window, {tokens:,}: it is not read"
            )
        return _windows(units, tokens, limits, stride, budget or WindowBudget())
    said = f"text {index} has {_size(units, len(units), limits)}, the model reads {_limit(limits)} of a text"
    if long.truncate and fits:
        call.warn("truncate", f"{said}: it was cut after {_size(units, fits, limits)}")
        return [(0, fits)]
    raise ContextLengthExceeded(
        f"{said} beside {limits.labels_tokens:,} tokens of labels: give stride to read it in windows,"
        " truncate to cut it, fewer labels or a shorter text",
        param="input",
    )


def _piece_tokens(limits: TextLimits, long: LongTexts) -> int:
    window = long.window if long.window is not None else limits.window if long.in_windows else None
    return limits.tokens if window is None else min(limits.tokens, window)


def _size(units: Units, count: int, limits: TextLimits) -> str:
    words = "" if limits.words is None else f"{count:,} words and "
    return f"{words}{units.starts[count]:,} tokens"


def _limit(limits: TextLimits) -> str:
    words = "" if limits.words is None else f"{limits.words:,} words and "
    return f"{words}{limits.tokens:,} tokens"


def _fitting(units: Units, first: int, tokens: int, words: int | None) -> int:
    """Where a piece from unit `first` on ends."""
    last = len(units) if words is None else min(len(units), first + words)
    low, high = first, last
    while low < high:
        middle = (low + high + 1) // 2
        if units.starts[middle] - units.starts[first] <= tokens:
            low = middle
        else:
            high = middle - 1
    return low


def _windows(
    units: Units, tokens: int, limits: TextLimits, stride: int, budget: WindowBudget
) -> list[tuple[int, int]]:
    """Windows from the first unit to the last, each with the last units of the one before it, up to `stride`
    tokens. A single unit that does not fit is left out."""
    found: list[tuple[int, int]] = []
    first = 0
    while first < len(units):
        end = _fitting(units, first, tokens, limits.words)
        if end == first:  # one word of more tokens than a window
            first += 1
            continue
        found.append((first, end))
        budget.take(limits.labels_tokens + units.starts[end] - units.starts[first])
        if end == len(units):
            break
        after = end
        while after - 1 > first and units.starts[end] - units.starts[after - 1] <= stride:
            after -= 1
        first = after
    return found
