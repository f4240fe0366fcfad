"""Redact and restore text that arrives in pieces: the same output however it is cut."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from headrace.tasks.entities import Entity
from headrace.tasks.pii.blocks import committed, marked
from headrace.tasks.pii.folding import Folded, fold
from headrace.tasks.pii.operators import MAX_PLACEHOLDER, restore_text
from headrace.tasks.pii.recognizer import CONTEXT_CHARACTERS, RecognizerResult
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.pii.spans import resolved

_WORD = re.compile(r"[^\0]+")
_OPEN_PLACEHOLDER = re.compile(r"<(?:[A-Z][A-Z0-9_]*)?\Z")


class StreamingRedactor:
    """Redacts a stream. What it holds back is the block that is not complete: mostly a word, a number with
    blanks, or a private key (see blocks.py).

    Patterns of requests are searched in each block by itself, those of the package as in a whole text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending, self._before = "", ""
        self._read = 0
        self.entities: list[Entity] = []
        """What was replaced, with offsets in all text so far."""

    @property
    def held(self) -> int:
        """How many characters are held back."""
        return len(self._pending)

    def feed(self, text: str) -> str:
        """More text; what is known to be free of personal data, or replaced."""
        self._pending += text
        folded = fold(self._pending)
        count = committed(folded.text)
        if not count:
            return ""
        return self._take(folded, folded.span(count - 1, count)[1], count)

    def finish(self) -> str:
        """The rest, at the end of the text."""
        folded = fold(self._pending)
        return self._take(folded, len(self._pending), len(folded.text))

    def _take(self, folded: Folded, count: int, folded_count: int) -> str:
        text = self._pending[:count]
        places = None if folded.places is None else folded.places[:folded_count]
        ready = Folded(folded.text[:folded_count], places)
        analyzer = self._redactor.analyzer
        found = [*analyzer.in_blocks(ready, self._before), *self._custom(ready)]
        kept = [one for one in found if text[one.start : one.end] not in analyzer.allow]
        replaced, entities = self._redactor.replace(text, resolved(text, kept))
        for one in entities:
            shifted = (one.start + self._read, one.end + self._read)
            self.entities.append(Entity(*shifted, one.label, one.text, one.score))
        self._read += count
        self._pending = self._pending[count:]
        self._before = (self._before + ready.text)[-CONTEXT_CHARACTERS:]
        return replaced

    def _custom(self, ready: Folded) -> list[RecognizerResult]:
        analyzer, found = self._redactor.analyzer, list[RecognizerResult]()
        if not analyzer.custom:
            return found
        for block in _WORD.finditer(marked(ready.text)):
            start, end = block.span()
            places = range(start, end) if ready.places is None else ready.places[start:end]
            part = Folded(ready.text[start:end], np.asarray(places))
            found += analyzer.in_text(part, self._before + ready.text[:start])
        return found


class StreamingRestorer:
    """Puts the texts of a vault back into a stream, such as the answer to a redacted prompt."""

    def __init__(self, vault: Mapping[str, str]) -> None:
        self._vault, self._pending = vault, ""

    def feed(self, text: str) -> str:
        """More text; all but what may be the beginning of a placeholder."""
        self._pending += text
        opened = self._pending.rfind("<", -MAX_PLACEHOLDER)
        end = len(self._pending)
        if opened >= 0 and _OPEN_PLACEHOLDER.match(self._pending, opened):
            end = opened
        ready, self._pending = self._pending[:end], self._pending[end:]
        return restore_text(ready, self._vault)

    def finish(self) -> str:
        """The rest, at the end of the text."""
        ready, self._pending = self._pending, ""
        return restore_text(ready, self._vault)
