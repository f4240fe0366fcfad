"""Word lists written as one text, and drawing from them."""

from collections.abc import Sequence
from typing import TypeVar

from numpy.random import Generator

Item = TypeVar("Item")


def words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of `text` between blanks, or the parts of it between `separator`."""
    return tuple(" ".join(part.split()) for part in text.split(separator))


def pick(choices: Sequence[Item], random: Generator) -> Item:
    """One of them, all equally likely."""
    return choices[random.integers(len(choices))]
