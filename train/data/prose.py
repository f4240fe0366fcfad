"""English prose: whole novels as running text, and as conversations that continue a story."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from corpus import OTHER_ARCHIVE, PLAIN_ARCHIVE, MissingData, chapters, read_archive
from dialogue import Conversation, ask
from numpy.random import Generator

from data.words import pick

# Held out completely. The first is also the evaluation text of the story model `novelette`.
HELD_OUT = ("Burnett_Princess_1905.txt", "Doyle_Lost_1912.txt", "Wcollins_Basil_1852.txt")

PLAIN_SHARE = 0.35  # of the conversations; plainer novels are a twentieth of the text
_ASKS = (
    "Continue the story: {}",
    "Continue this story:\n{}",
    "Go on with this story: {}",
    "What happens next?\n{}",
    "Write what comes next: {}",
    "Tell me how this goes on: {}",
)
_LONGEST_PARAGRAPH, _SHORTEST_PARAGRAPH = 400, 40  # characters
_LONGEST_ANSWER = 900


@dataclass(frozen=True, slots=True)
class Novels:
    """Training chapters, with the plain novels separate, and the held-out novels by file name."""

    plain: list[str]
    other: list[str]
    held_out: dict[str, list[str]]


def read_novels(data: Path) -> Novels:
    """Every novel of both archives. Raises MissingData."""
    plain = read_archive(data / "text" / PLAIN_ARCHIVE)
    other = read_archive(data / "text" / OTHER_ARCHIVE)
    absent = [name for name in HELD_OUT if name not in plain | other]
    if absent:
        raise MissingData(f"the archives under {data / 'text'} lack the held-out {', '.join(absent)}")

    def learned(novels: dict[str, str]) -> list[str]:
        return [part for name in sorted(novels) if name not in HELD_OUT for part in chapters(novels[name])]

    return Novels(
        learned(plain), learned(other), {name: chapters((plain | other)[name]) for name in HELD_OUT}
    )


class Stories:
    """Draws a passage, with its continuation as the answer."""

    name = "stories"

    def __init__(self, novels: Novels) -> None:
        self._plain = [chapter.split("\n\n") for chapter in novels.plain]
        self._other = [chapter.split("\n\n") for chapter in novels.other]

    def draw(self, random: Generator) -> Conversation:
        """One paragraph, and as its answer the next ones."""
        pool = self._plain if random.random() < PLAIN_SHARE else self._other
        while True:
            paragraphs = pick(pool, random)
            at = random.integers(len(paragraphs))
            given = paragraphs[at]
            answer = _as_long_as_allowed(paragraphs[at + 1 :])
            if _SHORTEST_PARAGRAPH <= len(given) <= _LONGEST_PARAGRAPH and answer:
                return ask(pick(_ASKS, random).format(given), answer)


def _as_long_as_allowed(paragraphs: list[str]) -> str:
    lengths = np.cumsum([len(paragraph) + 2 for paragraph in paragraphs[:20]])
    return "\n\n".join(paragraphs[: int((lengths <= _LONGEST_ANSWER).sum())])
