"""Reasoning budget: force the end of reasoning after a maximum of tokens, delay it before a minimum."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from headrace.errors import InvalidRequest


class ReasoningBudget(Struct, frozen=True, kw_only=True):
    """At most `max_tokens` tokens of a choice may come between `start` and `end` (None: no limit); after
    them `closing` is forced.

    Reasoning cannot end before `min_tokens`: if the model generates the token that completes `end`, or one
    that would stop the choice, it is replaced by `continuation`, whose tokens count as well. This is budget
    forcing (Muennighoff et al. 2025, "s1: Simple test-time scaling", https://arxiv.org/abs/2501.19393). If
    `end` has several tokens, those before the last are already generated and remain.

    `closing` are the ids of a text that contains `end`; they do not count. `starts_in_reasoning`: the
    prompt ends after `start`. Otherwise the output must begin with `start` (after optional white space), or
    there is no reasoning. With `reopens`, reasoning may start anywhere and repeatedly; all of it counts.
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
    """Tracks the reasoning of one choice. The state depends only on the tokens it was given."""

    def __init__(self, limit: ReasoningBudget, bytes_of: Callable[[int], bytes]) -> None:
        self._limit, self._bytes_of = limit, bytes_of
        self._inside, self._over = limit.starts_in_reasoning, False
        self._tail = b""  # the end of the output, long enough to contain the beginning of a marker
        self._count = 0
        self._forced: deque[int] = deque()
        self._check()

    @property
    def forced(self) -> int | None:
        """The next token if it is forced: it ends the reasoning or continues it."""
        return self._forced[0] if self._forced else None

    def instead_of(self, token: int, *, stops: bool) -> int:
        """The token to use for a token that was drawn: the same, or, if it would end the reasoning too
        early, the first token of the continuation, whose rest is then forced. `stops`: it would end the
        choice.
        """
        limit = self._limit
        if not self._inside or self._forced or self._count >= limit.min_tokens:
            return token
        if not stops and limit.end not in self._tail + self._bytes_of(token):
            return token
        self._forced.extend(limit.continuation)
        return limit.continuation[0]

    def take(self, token: int) -> None:
        """Add a generated token."""
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
