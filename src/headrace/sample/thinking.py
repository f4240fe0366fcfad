"""How long a model may reason: tokens between its marks are counted, and past a limit the end is forced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """At most `max_tokens` tokens of a choice stand between `start` and `end`; then `closing` is forced.

    `closing` are the ids of a text with `end` in it, and count for nothing here. `opened`: the prompt ends
    after `start`. Otherwise, but for white space, the output begins with it, or there is no reasoning; with
    `reopens` it may come anywhere, and again, and all reasoning counts together.
    """

    max_tokens: int
    start: bytes
    end: bytes
    closing: tuple[int, ...]
    opened: bool = False
    reopens: bool = False


class Thinking:
    """One choice's place in its reasoning. It depends on the tokens taken alone."""

    def __init__(self, limit: ThinkingLimit, bytes_of: Callable[[int], bytes]) -> None:
        self._limit, self._bytes_of = limit, bytes_of
        self._inside, self._over = limit.opened, False
        self._tail = b""  # what was generated lately, as far as a mark may have begun in it
        self._count = 0
        self._forced: deque[int] = deque()
        self._check()

    @property
    def forced(self) -> int | None:
        """The next token, where it is one of those that end the reasoning."""
        return self._forced[0] if self._forced else None

    def take(self, token: int) -> None:
        """A token was generated."""
        if self._over:
            return
        if self._forced:
            self._forced.popleft()
        text = self._tail + self._bytes_of(token)
        if self._inside:
            self._think(text)
        else:
            self._wait(text)
        self._check()

    def _think(self, text: bytes) -> None:
        end = self._limit.end
        place = text.find(end)
        if place < 0:
            self._count += 1
            self._tail = text[max(0, len(text) - len(end) + 1) :]
        else:
            self._inside, self._over = False, not self._limit.reopens
            self._tail = text[place + len(end) :]

    def _wait(self, text: bytes) -> None:
        start = self._limit.start
        if start in text:
            self._inside, self._tail = True, b""
        elif self._limit.reopens:
            self._tail = text[max(0, len(text) - len(start) + 1) :]
        else:
            self._tail = text.lstrip()
            self._over = not start.startswith(self._tail)

    def _check(self) -> None:
        if self._inside and not self._forced and self._count >= self._limit.max_tokens:
            self._forced.extend(self._limit.closing)
