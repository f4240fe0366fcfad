"""Word lists written as one text, and drawing from them."""

from collections.abc import Sequence
from typing import TypeVar

from numpy.random import Generator

Item = TypeVar("Item")


def words(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The words of `text`, split at white space or at `separator`."""
    return tuple(" ".join(part.split()) for part in text.split(separator))


def pick(choices: Sequence[Item], random: Generator) -> Item:
    """One of them, with equal probability."""
    return choices[random.integers(len(choices))]


# Names of files, folders and packages in generated examples.
STEMS = words(
    """
    notes report data backup photo letter budget draft song index results archive config main test log
    """
)
EXTENSIONS = words("txt csv json log md pdf png py html xml")
FOLDERS = words("src docs photos music backup projects build downloads logs work")
PACKAGES = words("vim nginx htop curl ffmpeg redis firefox numpy requests tree")
