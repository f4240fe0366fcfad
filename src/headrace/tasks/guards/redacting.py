"""Text that arrives in pieces, redacted by the patterns of a guard."""

from __future__ import annotations

from typing import Protocol

from headrace.tasks.entities import Entity
from headrace.tasks.guards.sentences import Sentences
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.pii.spans import resolved


class PieceRedactor(Protocol):
    """`entities` are those that were replaced so far."""

    entities: list[Entity]

    def feed(self, text: str) -> str:
        """More text; what may be shown."""
        ...

    def finish(self) -> str:
        """The rest, at the end of the text."""
        ...


class SentenceRedactor:
    """Redacts patterns that may match across blanks and lines: a sentence is shown when the one after it is
    complete, and a match in both is replaced as a whole."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor, self._sentences, self._held = redactor, Sentences(), ""
        self.entities: list[Entity] = []

    def feed(self, text: str) -> str:
        """See `PieceRedactor.feed`."""
        return "".join(map(self._take, self._sentences.feed(text)))

    def finish(self) -> str:
        """See `PieceRedactor.finish`."""
        return self._take(self._sentences.finish()) + self._shown(len(self._held))

    def _take(self, sentence: str) -> str:
        before = len(self._held)
        self._held += sentence
        return self._shown(before)

    def _shown(self, count: int) -> str:
        """The first `count` characters of what is held, and a match that begins in them."""
        findings = resolved(self._held, self._redactor.analyzer.find(self._held))
        inside = [one for one in findings if one.start < count]
        count = max([count, *(one.end for one in inside)])
        text, entities = self._redactor.replace(self._held[:count], inside)
        self.entities += entities
        self._held = self._held[count:]
        return text
