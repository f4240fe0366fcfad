"""Bounds of reasoning: its tokens are counted, past the most its end is forced, before the least put off."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from headrace.errors import InvalidRequest


class ReasoningBudget(Struct, frozen=True, kw_only=True):
    """At most `max_tokens` tokens of a choice stand between `start` and `end`; then `closing` is forced.
    None: as many as the model likes.

    Before `min_tokens` there is no end: where the model writes the token that completes `end`, or one that
    would stop the choice, `continuation` stands in its place and counts, too. That is budget forcing
    (Muennighoff et al. 2025, "s1: Simple test-time scaling", https://arxiv.org/abs/2501.19393). Of an `end`
    of several tokens the others have been written by then, and stay.

    `closing` are the ids of a text with `end` in it, and count for nothing here. `starts_in_reasoning`: the
    prompt ends after `start`. Otherwise, but for white space, the output begins with it, or there is no
    reasoning; with `reopens` it may come anywhere, and again, and all reasoning counts together.
    """

    max_tokens: int | None
    start: bytes
    end: bytes
    closing: tuple[int, ...]
    starts_in_reasoning: bool = False
    reopens: bool = False
    min_tokens: int = 0
    continuation: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_thinking_tokens ({self.min_tokens:,}) is larger than the budget of thinking "
                f"(thinking_token_budget, {self.max_tokens:,}): change one of them",
                param="min_thinking_tokens",
            )
        if self.min_tokens and not self.continuation:
            raise InvalidRequest(
                "min_thinking_tokens needs a text to go on with: thinking_continuation has no tokens",
                param="thinking_continuation",
            )


class ReasoningState:
    """One choice's place in its reasoning. It depends on the tokens taken alone."""

    def __init__(self, limit: ReasoningBudget, bytes_of: Callable[[int], bytes]) -> None:
        self._limit, self._bytes_of = limit, bytes_of
        self._inside, self._over = limit.starts_in_reasoning, False
        self._tail = b""  # what was generated lately, as far as a mark may have begun in it
        self._count = 0
        self._forced: deque[int] = deque()
        self._check()

    @property
    def forced(self) -> int | None:
        """The next token, where it is one of those that end the reasoning or go on with it."""
        return self._forced[0] if self._forced else None

    def instead_of(self, token: int, *, stops: bool) -> int:
        """What stands in the place of a token that was drawn: it itself, or where it would end the reasoning
        too early the first of the continuation, of which the rest is forced then. `stops`: it would end the
        choice."""
        limit = self._limit
        if not self._inside or self._forced or self._count >= limit.min_tokens:
            return token
        if not stops and limit.end not in self._tail + self._bytes_of(token):
            return token
        self._forced.extend(limit.continuation)
        return limit.continuation[0]

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
        most = self._limit.max_tokens
        if most is not None and self._inside and not self._forced and self._count >= most:
            self._forced.extend(self._limit.closing)
