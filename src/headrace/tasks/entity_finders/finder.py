"""What the kinds of models that find entities have in common: labels and text in, candidates out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from headrace.errors import InvalidRequest, UnsupportedModel
from headrace.ops.value import Array
from headrace.tasks.entity_finders.spans import Candidates
from headrace.tokenization.tokenizer import Tokenizer


class Units(Struct, frozen=True):
    """A text in the units that spans are made of, tokens or words: the ids of all, at which id each unit
    begins [units + 1], and the characters [start, end) of each.
    """

    ids: list[int]
    starts: list[int]
    characters: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.characters)

    def part(self, first: int, end: int) -> Units:
        """The units [first, end)."""
        begin, stop = self.starts[first], self.starts[end]
        return Units(
            self.ids[begin:stop],
            [start - begin for start in self.starts[first : end + 1]],
            self.characters[first:end],
        )


class Frame(Struct, frozen=True):
    """What the model reads around each text: the ids `before` it, with the labels, and `after` it; where in
    `before` the state of each label is found."""

    before: list[int]
    after: list[int]
    marks: list[int]
    labels: tuple[str, ...]


class Finder(Protocol):
    """One kind of model. `most_units` is the longest text in units that it was made for, None: any; `window`
    how many tokens a piece of a long text has unless the request says, None: what fits.

    The same object serves all calls of a loaded model, from several threads.
    """

    most_units: int | None
    window: int | None

    def frame(self, tokenizer: Tokenizer, labels: Sequence[str]) -> Frame:
        """How labels are written."""
        ...

    def units(self, tokenizer: Tokenizer, text: str) -> Units:
        """How a text is cut."""
        ...

    def find(
        self,
        states: Sequence[Array],
        frame: Frame,
        parts: Sequence[Units],
        threshold: float,
        *,
        every_label: bool,
    ) -> list[Candidates]:
        """Of each part of a text its spans above the threshold, by the model's states [tokens, hidden] of
        the frame with the part in it. NumericalError where these are not finite."""
        ...


def word_units(tokenizer: Tokenizer, words: Sequence[str], places: list[tuple[int, int]]) -> Units:
    """Units that are words, each with its own tokens."""
    ids = tokenizer.encode_words(words)
    starts = [0, *np.cumsum([len(one) for one in ids], dtype=int).tolist()]
    return Units([one for several in ids for one in several], starts, places)


def check_tokens(label: str, ids: Sequence[int]) -> None:
    """InvalidRequest for a label without tokens."""
    if not ids:
        raise InvalidRequest(
            f"the label {label[:80]!r} has no tokens for this model: use other words", param="labels"
        )


def id_of(tokenizer: Tokenizer, mark: str) -> int:
    """The id of a mark that the head needs; UnsupportedModel where the tokenizer has none."""
    found = tokenizer.id_of(mark)
    if found is None:
        raise UnsupportedModel(
            f"tokenizer.json has no token {mark!r}, which stands in front of each label or of the text: use"
            " the tokenizer that was saved with this model"
        )
    return found
