"""Incremental reader: generators that wait for more text. Results do not depend on how it is split."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]
"""A parser in progress: each `yield` waits for more text."""
Show = Callable[[str], None]


class Malformed(Exception):
    """The text does not match the syntax."""


class Reader:
    """The text so far, and the read position.

    No method looks ahead further than necessary. Results depend only on the text, not on how it is split.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._taken: list[str] = []
        self.ended = False

    def feed(self, text: str) -> None:
        """Append text."""
        self._taken.append(self._text[: self._at])
        self._text, self._at = self._text[self._at :] + text, 0

    def record(self) -> None:
        """Start of `recorded`."""
        self._taken.clear()
        self._text, self._at = self._text[self._at :], 0

    def recorded(self) -> str:
        """Text read since `record`."""
        return "".join(self._taken) + self._text[: self._at]

    @property
    def rest(self) -> str:
        """Text that has arrived but has not been read."""
        return self._text[self._at :]

    def peek(self) -> Steps[str]:
        """The next character, without consuming it; "" at the end."""
        while self._at >= len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def take(self, size: int = 1) -> Steps[str]:
        """The next `size` characters."""
        while len(self._text) - self._at < size and not self.ended:
            yield
        self._at += size
        if self._at > len(self._text):
            self._at = len(self._text)
            raise Malformed
        return self._text[self._at - size : self._at]

    def space(self) -> Steps[None]:
        """Skip white space."""
        while (yield from self.peek()).isspace():
            self._at += 1

    def literal(self, *options: str) -> Steps[str]:
        """Read the longest of `options` at this position; "" if none matches."""
        found = ""
        for option in sorted(options, key=len, reverse=True):
            while option.startswith(self._text[self._at : self._at + len(option)]) and not self.ended:
                if len(self._text) - self._at >= len(option):
                    break
                yield
            if self._text.startswith(option, self._at):
                found = option
                break
        self._at += len(found)
        return found

    def expect(self, *options: str) -> Steps[str]:
        """As `literal`, but raises Malformed if none matches."""
        found = yield from self.literal(*options)
        if not found:
            raise Malformed
        return found

    def until(self, marks: tuple[str, ...], show: Show, *, record: bool = False) -> Steps[str]:
        """Emit text up to the first of `marks`, and consume the marker; "" if the text ends first.

        Text that may be the start of a marker is held back. With `record`, `recorded` begins at the marker.
        """
        while True:
            rest = self._text[self._at :]
            at, mark = min(((rest.find(mark), mark) for mark in marks if mark in rest), default=(-1, ""))
            free = at if mark else len(rest) - (0 if self.ended else _begun(rest, marks))
            if free:
                show(rest[:free])
                self._at += free
            if mark or self.ended:
                if record:
                    self.record()
                self._at += len(mark)
                return mark
            yield

    def word(self, stops: str) -> Steps[str]:
        """Characters up to white space or one of `stops`, which is not consumed."""
        letters: list[str] = []
        while letter := (yield from self.peek()):
            if letter.isspace() or letter in stops:
                break
            letters.append(letter)
            self._at += 1
        return "".join(letters)

    def followed_by(self, *options: str) -> Steps[bool]:
        """True if, after white space, one of `options` or the end follows; consumes nothing."""
        while True:
            rest = self._text[self._at :].lstrip()
            if any(rest.startswith(option) for option in options):
                return True
            if self.ended or not any(option.startswith(rest) for option in options):
                return not rest
            yield


def _begun(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest suffix of `text` that is a prefix of one of `marks`."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0
