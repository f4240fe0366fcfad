"""Text that arrives in pieces, as sentences."""

from __future__ import annotations

import re

MAX_SENTENCE = 2000
"""Characters, after which a sentence ends wherever it is."""

_END = re.compile(r"(?<![.!?…])[.!?…]++[\"')\]]*+\s+|[。！？]+|\n+")


class Sentences:
    """Cuts a stream behind each sentence; the sentences do not depend on how the text arrived."""

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> list[str]:
        """The sentences that are complete."""
        self._pending += text
        done: list[str] = []
        start, whole = 0, len(self._pending)
        while True:
            near = self._pending[start : start + MAX_SENTENCE + 1]
            found = _END.search(near)
            # A mark at the very end may go on: "..", blanks.
            end = found.end() if found and start + found.end() < whole else None
            if (end is None or end > MAX_SENTENCE) and whole - start > MAX_SENTENCE:
                end = MAX_SENTENCE
            if end is None:
                self._pending = self._pending[start:]
                return done
            done.append(near[:end])
            start += end

    def finish(self) -> str:
        """The rest, at the end of the text."""
        rest, self._pending = self._pending, ""
        return rest
