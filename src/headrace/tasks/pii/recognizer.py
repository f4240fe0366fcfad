"""Recognizers: patterns of one kind of entity, with a checksum and words of context."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from msgspec import Struct, convert

from headrace.tasks.pii.addresses import RAW_CHECKS
from headrace.tasks.pii.checks import CHECKS

CONTEXT_CHARACTERS = 64
CONTEXT_WORDS = 6
CONTEXT_BOOST, CONTEXT_LEAST = 0.35, 0.4
_SHORT_WORD = 3  # and shorter: the whole word must be there
_MAX_GROUPS = 3  # that are taken from the end of a match, one after the other, until its check passes
_MAX_NUMBER = 64  # characters with separators
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
_BYTE_SEPARATOR = re.compile(rb"[ -]")

_re2: Any = importlib.import_module("re2")  # it has no types


class PatternData(Struct, frozen=True, forbid_unknown_fields=True):
    """A pattern with the score of a match, and of one that passes the check."""

    regex: str
    score: float = 0.0
    checked: float = 1.0


class RecognizerData(Struct, frozen=True, forbid_unknown_fields=True):
    """A recognizer as it is written: see recognizers.toml."""

    entity: str
    patterns: tuple[PatternData, ...]
    country: str | None = None
    check: str | None = None
    rule: str | None = None
    trim: str = ""
    apart: str = ""
    context: tuple[str, ...] = ()


class RecognizerResult(Struct, frozen=True):
    """Code points [start, end) that may be an entity of label `label`, and why.

    `pattern_score` is the score without its context word `context`; `validated` tells if a checksum holds.
    """

    start: int
    end: int
    label: str
    score: float
    recognizer: str
    pattern: str
    pattern_score: float
    validated: bool | None
    context: str | None = None


class Hit(Struct, frozen=True):
    """Bytes [start, end) that a pattern matches, with the score that this gives, before any context."""

    start: int
    end: int
    score: float
    pattern: str


class Recognizer:
    """Finds one kind of entity. `name` is as Presidio names its recognizers."""

    def __init__(self, data: RecognizerData) -> None:
        self.entity, self.country = data.entity, data.country
        self.name = "".join(part.capitalize() for part in data.entity.split("_")) + "Recognizer"
        self.patterns = [(_compiled(one.regex), one) for one in data.patterns]
        self._check = _check_of(data.check or data.rule)
        self.has_check = data.check is not None
        self._trim, self._apart = data.trim.encode(), data.apart.encode()
        self._context = context_pattern(data.context)

    def hits(self, text: bytes) -> Iterator[Hit]:
        """All matches that pass the check, of each pattern without overlaps."""
        for pattern, data in self.patterns:
            place = 0
            while found := pattern.search(text, place):
                start, end = found.span()
                end = self._accepted(text, start, end)
                if end > start:
                    yield Hit(start, end, data.checked if self.has_check else data.score, data.regex)
                    place = end
                else:
                    place = _next_start(text, *found.span())

    def context_word(self, before: str) -> str | None:
        """The word of context in what stands before a match, if any."""
        if self._context is None:
            return None
        found = self._context.search(" ".join(before.lower().split()[-CONTEXT_WORDS:]))
        return found[0] if found else None

    def _accepted(self, text: bytes, start: int, end: int) -> int:
        """Where the entity in a match ends; `start` where there is none."""
        end = _trimmed(text, start, end, self._trim) if self._trim else end
        if self._apart and not _is_apart(text, start, end, self._apart):
            return start
        if self._check is None:
            return end
        for _ in range(_MAX_GROUPS):
            if self._check(text[start:end].decode()):
                return end
            shorter = max(text.rfind(b" ", start, end), text.rfind(b"-", start, end))
            if shorter < 0 or not self.has_check:
                break
            end = shorter
        return start


def _compiled(regex: str) -> Any:
    options = _re2.Options()
    options.log_errors = False
    return _re2.compile(regex, options)


def _check_of(name: str | None) -> Callable[[str], bool] | None:
    if name is None or name in RAW_CHECKS:
        return RAW_CHECKS[name] if name else None
    check = CHECKS[name]

    def passes(text: str) -> bool:
        try:
            return check(_SEPARATORS.sub("", text).upper())
        except (ValueError, IndexError, KeyError):  # a shape that this check does not know
            return False

    return passes


def _next_start(text: bytes, start: int, end: int) -> int:
    """Behind the first separator of a match that is none, where another may begin."""
    if end - start > _MAX_NUMBER:
        return end
    found = _BYTE_SEPARATOR.search(text, start, end)
    return found.end() if found and found.end() > start else end


def _trimmed(text: bytes, start: int, end: int, characters: bytes) -> int:
    while end > start and text[end - 1] in characters:
        is_closing = text[end - 1] == ord(")") and text.count(b"(", start, end) >= text.count(
            b")", start, end
        )
        if is_closing:
            break
        end -= 1
    return end


def _is_apart(text: bytes, start: int, end: int, separators: bytes) -> bool:
    """Whether neither a letter, nor a separator with one behind it, adjoins the match."""
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    if before[-1:].isalnum() or after[:1].isalnum():
        return False
    is_joined = before[-1:] in _bytes_of(separators) and (before[:1].isalnum() or before[:1] == before[-1:])
    return not (is_joined and len(before) == 2) and not (
        after[:1] in _bytes_of(separators) and len(after) == 2 and after[1:].isalnum()
    )


@cache
def _bytes_of(characters: bytes) -> frozenset[bytes]:
    return frozenset(bytes([one]) for one in characters)


def context_pattern(words: Sequence[str]) -> re.Pattern[str] | None:
    """What finds one of these words at the beginning of a word, short ones as whole words."""
    if not words:
        return None
    return re.compile("|".join(_word_pattern(word.lower()) for word in sorted(words, key=len, reverse=True)))


def _word_pattern(word: str) -> str:
    if not word.isascii() and not any(character.islower() for character in word):
        return re.escape(word)  # scripts that write without blanks
    return rf"(?<!\w){re.escape(word)}" + (r"(?!\w)" if len(word) <= _SHORT_WORD else "")


def boosted(score: float, context: str | None) -> float:
    """The score with that word of context."""
    return score if context is None else min(1.0, max(score + CONTEXT_BOOST, CONTEXT_LEAST))


@cache
def bundled_recognizers() -> tuple[Recognizer, ...]:
    """Those of recognizers.toml."""
    text = (files(__package__ or "") / "recognizers.toml").read_text(encoding="utf-8")
    return tuple(map(Recognizer, convert(tomllib.loads(text)["recognizer"], list[RecognizerData])))
