"""What the arguments of all tasks are held to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.ops.value import Array

MAX_TEXTS = 2048
MAX_LABELS = 1000
MAX_LABEL_LENGTH = 1000
"""Characters of one label: models read each with every text."""
MAX_LABEL_CHARACTERS = 8_000_000
"""Of all labels, once for each text: a reply names them with every text."""
MAX_SEARCHED = 2_000_000
"""Characters of all texts of a request that patterns search, which takes seconds for so many."""
MAX_WINDOWED_TOKENS = 1_000_000
"""Of all windows of a request together: a text is in as many as `stride` asks for."""

MAX_NUMBERS = 4_000_000
"""Of all vectors of tokens in a reply, which has 20 bytes for each."""


class WindowBudget(Struct):
    """Counts the tokens of a request's windows."""

    tokens: int = 0

    def take(self, tokens: int) -> None:
        """More windows, of so many tokens together; InvalidRequest above MAX_WINDOWED_TOKENS."""
        self.tokens += tokens
        if self.tokens > MAX_WINDOWED_TOKENS:
            raise InvalidRequest(
                f"the windows have more than {MAX_WINDOWED_TOKENS:,} tokens, those that they share and labels"
                " included: send less text at once, or a smaller stride",
                param="stride",
            )


def check_texts(texts: Sequence[object], param: str) -> None:
    """InvalidRequest for no texts, or more than MAX_TEXTS."""
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise InvalidRequest(
            f"{param} has {len(texts):,} entries, it must have 1 to {MAX_TEXTS:,}"
            + (": split it" if texts else ""),
            param=param,
        )


def check_strings(values: Sequence[object], param: str) -> None:
    """InvalidRequest for anything but a list of texts; a text alone is no list of its characters."""
    if isinstance(values, str):
        raise InvalidRequest(f"{param} is a text, it must be a list of texts", param=param)
    for index, one in enumerate(values):
        if not isinstance(one, str):
            raise InvalidRequest(f"{param}[{index}] is {repr(one)[:100]}, it must be a text", param=param)


def check_searched(texts: Iterable[str], param: str) -> None:
    """InvalidRequest for texts of more than MAX_SEARCHED characters together."""
    count = sum(map(len, texts))
    if count > MAX_SEARCHED:
        raise InvalidRequest(
            f"{param} has {count:,} characters, at most {MAX_SEARCHED:,} are searched at once: split it",
            param=param,
        )


def check_numbers(vectors: Sequence[Array], inputs: int, most: int, param: str) -> None:
    """InvalidRequest where the vectors of the first of so many `inputs` have more than `most` numbers."""
    if sum(one.size for one in vectors) > most:
        raise InvalidRequest(
            f"the vectors of {len(vectors):,} of the {inputs:,} inputs have more than {most:,} numbers: send"
            " fewer or shorter ones at once",
            param=param,
        )


def check_labels(labels: Sequence[object], param: str = "labels") -> None:
    """InvalidRequest for anything but a list of 1 to MAX_LABELS texts, none empty and none there twice."""
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise InvalidRequest(
            f"{param} is {repr(labels)[:200]}, it must be a list of texts, such as ['person', 'city']",
            param=param,
            code="invalid_type",
        )
    if not 1 <= len(labels) <= MAX_LABELS:
        raise InvalidRequest(
            f"{param} has {len(labels):,} entries, it must have 1 to {MAX_LABELS:,}", param=param
        )
    if not all(str(label).strip() for label in labels):
        raise InvalidRequest(f"{param} has an empty label: give each some text", param=param)
    longest = max(len(str(label)) for label in labels)
    if longest > MAX_LABEL_LENGTH:
        raise InvalidRequest(
            f"{param} has one of {longest:,} characters, a label has at most {MAX_LABEL_LENGTH:,}:"
            " shorten it",
            param=param,
        )
    if len(set(labels)) < len(labels):
        twice = next(label for index, label in enumerate(labels) if label in labels[:index])
        raise InvalidRequest(f"{param} names one twice: {str(twice)[:200]}", param=param)


def check_label_characters(labels: Iterable[str], texts: int, param: str = "labels") -> None:
    """InvalidRequest for labels that are too long to be named with each of so many texts."""
    count = texts * sum(map(len, labels))
    if count > MAX_LABEL_CHARACTERS:
        raise InvalidRequest(
            f"the labels, named with each of {texts:,} texts, have {count:,} characters, at most"
            f" {MAX_LABEL_CHARACTERS:,} are written: send shorter labels or fewer texts",
            param=param,
        )


def check_count(value: int | None, param: str) -> None:
    """InvalidRequest for a number that is given and below 1."""
    if value is not None and value < 1:
        raise InvalidRequest(f"{param} is {value}, it must be at least 1", param=param)


def check_finite(value: float, param: str) -> None:
    """InvalidRequest for NaN and infinity."""
    if not math.isfinite(value):
        raise InvalidRequest(f"{param} is {value}, it must be a finite number", param=param)
