"""Recognizers of a request: patterns in RE2's syntax, with a bound on the steps of their search."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from headrace.errors import InvalidRequest
from headrace.tasks.pii.recognizer import CONTEXT_CHARACTERS, Hit, context_pattern
from headrace.tokenization.linear_pattern import MAX_CHARACTERS, MAX_STEPS, compile_re2

MAX_RECOGNIZERS, MAX_PATTERNS, MAX_WORDS = 32, 32, 1000
MAX_CONTEXT = 100  # words, each of which is looked for before every match
MAX_MATCH_BYTES = 512

_re2: Any = importlib.import_module("re2")  # it has no types


class CustomPattern(Struct, frozen=True, kw_only=True):
    """A pattern of a request, and the score of a match. Case is ignored unless `ignore_case` is False; with
    `whole` no letter or digit may adjoin a match."""

    regex: str
    score: float = 0.5
    name: str = ""
    ignore_case: bool = True
    whole: bool = False


class Steps(Struct):
    """What searches of all recognizers that share it have taken."""

    taken: int = 0


class CustomRecognizer:
    """Finds an entity by patterns, or by words, that a request brings.

    A match is of MAX_MATCH_BYTES at most. All searches of the recognizers with the same `steps` together take
    MAX_STEPS at most.
    """

    has_check = False

    def __init__(
        self,
        entity: str,
        patterns: Sequence[CustomPattern] = (),
        *,
        words: Sequence[str] = (),
        context: Sequence[str] = (),
        name: str | None = None,
        param: str | None = None,
        steps: Steps | None = None,
    ) -> None:
        """Raises InvalidRequest that names `param` where a pattern cannot be searched so."""
        self.entity, self.country = entity, None
        self.name = name or f"{entity}Recognizer"
        self._param, self._steps = param, steps or Steps()
        if len(patterns) > MAX_PATTERNS or len(words) > MAX_WORDS or len(context) > MAX_CONTEXT:
            raise self._refused(
                f"more than {MAX_PATTERNS} patterns, {MAX_WORDS:,} words or {MAX_CONTEXT} words of context"
            )
        if not patterns and not words:
            raise self._refused("it has neither patterns nor a deny_list")
        self._patterns = [(self._compiled(one.regex, one.ignore_case), one) for one in patterns]
        if words:
            regex = "|".join(_re2.escape(word) for word in words if word)
            deny = CustomPattern(regex=regex, score=1.0, name="deny_list", ignore_case=False, whole=True)
            self._patterns.append((self._compiled(regex, False, longest=MAX_WORDS * 100), deny))
        words_of_context = [word for word in context if word]
        self._context = context_pattern(words_of_context)
        self._context_steps = CONTEXT_CHARACTERS * len(words_of_context)

    def hits(self, text: bytes) -> Iterator[Hit]:
        """All matches of each pattern without overlaps; InvalidRequest where that could take too long."""
        for pattern, data in self._patterns:
            self._charge(pattern.programsize * len(text))
            for start in range(0, len(text), MAX_MATCH_BYTES):
                yield from self._hits_in(pattern, data, text, start)

    def _hits_in(self, pattern: Any, data: CustomPattern, text: bytes, start: int) -> Iterator[Hit]:
        """Matches that begin in MAX_MATCH_BYTES from `start`. A search reads no more than twice as many, so
        that matches which end long before their search does cost no more than that each."""
        stop = min(start + 2 * MAX_MATCH_BYTES, len(text))
        last = min(start + MAX_MATCH_BYTES, stop)  # behind the text a search finds its end, again and again
        while start < last and (found := pattern.search(text, start, stop)):
            first, end = found.span()
            self._charge(pattern.programsize * (stop - first))
            if first >= last:
                return
            is_whole = not (text[first - 1 : first].isalnum() or text[end : end + 1].isalnum())
            if first < end <= first + MAX_MATCH_BYTES and (is_whole or not data.whole):
                yield Hit(first, end, data.score, data.name or data.regex)
            start = max(end, first + 1)

    def context_word(self, before: str) -> str | None:
        """See `Recognizer.context_word`."""
        self._charge(self._context_steps * max(1, len(before) // CONTEXT_CHARACTERS))
        found = self._context.search(before.lower()) if self._context else None
        return found[0] if found else None

    def _charge(self, steps: int) -> None:
        self._steps.taken += steps
        if self._steps.taken > MAX_STEPS:
            raise self._refused(
                f"it could take {self._steps.taken:,} steps to search the text, over {MAX_STEPS:,}"
            )

    def _compiled(self, source: str, ignore_case: bool, longest: int = MAX_CHARACTERS) -> Any:
        if len(source) > longest:
            raise self._refused(f"a pattern of {len(source):,} characters, at most {longest:,} are allowed")
        return compile_re2(source, self._refused, case_sensitive=not ignore_case)

    def _refused(self, cause: str) -> InvalidRequest:
        return InvalidRequest(
            f"the recognizer of {self.entity[:80]!r} cannot be used: {cause}: simplify it (RE2's syntax)",
            param=self._param,
        )
