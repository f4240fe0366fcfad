"""Repeat a text with one word changed; trains copying, which names and values in SQL and calls need too."""

import re
from collections.abc import Sequence

from dialogue import Conversation, ask
from numpy.random import Generator

from data.words import pick

_ASKS = (
    "Repeat this text and write {new} for {old}:\n{text}",
    "Replace {old} with {new} in this text:\n{text}",
    "Write {new} instead of {old}:\n{text}",
    "Change every {old} to {new}:\n{text}",
)
_REPEATS = ("Repeat this text:\n{text}", "Copy this text:\n{text}")
REPEAT_SHARE = 0.2
_SHORTEST, _LONGEST = 40, 300  # characters
_WORD = re.compile(r"\b[A-Za-z]{4,12}\b")


class Edits:
    """Draws passages; in most, one word must be replaced wherever it occurs."""

    name = "edits"

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def draw(self, random: Generator) -> Conversation:
        """A function of `random`."""
        text = self._piece(random)
        if random.random() < REPEAT_SHARE:
            return ask(pick(_REPEATS, random).format(text=text), text)
        old, new = self._word(text, random), self._word(self._piece(random), random)
        answer = re.sub(rf"\b{old}\b", new, text)
        return ask(pick(_ASKS, random).format(old=old, new=new, text=text), answer)

    def _piece(self, random: Generator) -> str:
        """Whole lines (paragraphs, in a novel) that contain words."""
        while True:
            lines = pick(self._texts, random).split("\n")
            at = int(random.integers(len(lines)))
            wanted = random.integers(_SHORTEST, _LONGEST)
            text = lines[at]
            while len(text) < wanted and at + 1 < len(lines):
                at += 1
                text += "\n" + lines[at]
            text = text.strip()
            if _SHORTEST <= len(text) <= _LONGEST and len(_WORD.findall(text)) > 3:
                return text

    @staticmethod
    def _word(text: str, random: Generator) -> str:
        """Of two words the one that occurs more often in the text."""
        found = _WORD.findall(text)
        return max((pick(found, random), pick(found, random)), key=found.count)
