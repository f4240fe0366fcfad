"""Text as patterns read it: digits, hyphens and blanks in ASCII, without characters that show nothing."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_HYPHENS = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d")

_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")  # shown as nothing, but no format
_SELECTOR = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0000-\U000e0fff]")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")


def has_control(text: str) -> bool:
    """Whether it has control characters that are no blanks."""
    return _CONTROL.search(text) is not None


def shows_nothing(character: str) -> bool:
    """Whether a character takes no place of its own: formats, controls that are no blanks, fillers, selectors
    of variants, tags, and marks around the character before, such as the key around a digit."""
    return (
        unicodedata.category(character) in ("Cf", "Me")
        or character in _FILLERS
        or _SELECTOR.match(character) is not None
        or has_control(character)
    )


class Folded(Struct, frozen=True):
    """A folded text, and of each of its characters the place in the text that it was (None: the same)."""

    text: str
    places: NDArray[np.intp] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Code points [start, end) of the text that it was."""
        if self.places is None:
            return start, end
        return int(self.places[start]), int(self.places[end - 1]) + 1


def fold(text: str) -> Folded:
    """NFKC of every character by itself, but for those that NFKC makes several of.

    Digits of all scripts become those of ASCII, as do hyphens. What shows nothing (zero-width characters,
    marks of direction, controls) is left out, surrogates are U+FFFD.
    """
    if text.isascii() and not has_control(text):
        return Folded(text)
    table = {ord(one): _folded(one) for one in set(text) if not one.isascii() or has_control(one)}
    folded = text.translate(table)
    if len(folded) == len(text):
        return Folded(folded)
    kept = np.fromiter((table.get(ord(one)) != "" for one in text), np.bool_, len(text))
    return Folded(folded, np.flatnonzero(kept))


@lru_cache(4096)
def _folded(character: str) -> str:
    if shows_nothing(character):
        return ""
    if unicodedata.category(character) == "Cs":
        return "\ufffd"
    if character in _HYPHENS:
        return "-"
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    normal = unicodedata.normalize("NFKC", character)
    return normal if len(normal) == 1 else character


def places_of_bytes(text: str, data: bytes) -> NDArray[np.intp] | None:
    """Of each byte of `data`, `text` in UTF-8, the character that it belongs to; None: byte i of character i.

    One more entry stands for the end.
    """
    if len(data) == len(text):
        return None
    starts = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80
    return np.append(np.cumsum(starts) - 1, len(text))
