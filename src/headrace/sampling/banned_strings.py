"""Search for strings in token bytes: banned strings, and the sequence breakers of DRY."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from headrace.grammar.token_table import Mask, mask_of
from headrace.sampling.penalties import BREAK


class SequenceBreakers:
    """Reports for each token of one text whether one of `strings` ends in it."""

    __slots__ = ("_longest", "_strings", "_tail", "_tokens")

    def __init__(self, tokens: Sequence[bytes], strings: Sequence[str]) -> None:
        self._tokens = tokens
        self._strings = [string.encode() for string in strings]
        self._longest = max(map(len, self._strings), default=1)
        self._tail = b""

    def push(self, token: int) -> bool:
        """Add the next token; True if a string ends in it."""
        before = len(self._tail)
        text = self._tail + self._tokens[token]
        self._tail = text[max(len(text) - self._longest + 1, 0) :]
        return any(text.find(string, max(before - len(string) + 1, 0)) >= 0 for string in self._strings)

    def marked(self, tokens: Sequence[int]) -> list[int]:
        """The next tokens, with BREAK in place of those in which a string ends."""
        return [BREAK if self.push(token) else token for token in tokens]


class TokenBytes:
    """The bytes that each of a model's tokens adds to a text, indexed for search. Immutable."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self._order = sorted(range(len(tokens)), key=tokens.__getitem__)
        self._sorted = [tokens[token] for token in self._order]
        self._joined = b"\xff".join(tokens)  # no string contains this byte
        self._ends = list(accumulate(len(text) + 1 for text in tokens))

    def beginning(self, start: bytes) -> list[int]:
        """The tokens that begin with `start`."""
        first = place = bisect_left(self._sorted, start)
        while place < len(self._sorted) and self._sorted[place].startswith(start):
            place += 1
        return self._order[first:place]

    def containing(self, string: bytes) -> list[int]:
        """The tokens that contain `string`."""
        found: list[int] = []
        place = self._joined.find(string)
        while place >= 0:
            found.append(bisect_right(self._ends, place))
            place = self._joined.find(string, self._ends[found[-1]])
        return found


class BannedTokens:
    """Banned strings, with the tokens that contain one of them. Immutable."""

    def __init__(self, tokens: TokenBytes, strings: Sequence[str]) -> None:
        self.tokens, self.strings = tokens, [string.encode() for string in strings]
        self.longest = max(map(len, self.strings))
        containing = {token for string in self.strings for token in tokens.containing(string)}
        self.whole = ~mask_of(containing, len(tokens.tokens))


class BannedStrings:
    """Token masks for one choice, excluding every token that would complete a banned string in its text."""

    def __init__(self, banned: BannedTokens) -> None:
        self._banned = banned
        self._tail = b""

    def accept(self, token: int) -> None:
        """Add a generated token."""
        text = self._tail + self._banned.tokens.tokens[token]
        self._tail = text[max(len(text) - self._banned.longest + 1, 0) :]

    def mask(self) -> Mask:
        """Mask of the tokens allowed next."""
        ends = {
            token
            for string in self._banned.strings
            for length in range(1, len(string))
            if self._tail.endswith(string[:length])
            for token in self._banned.tokens.beginning(string[length:])
        }
        if not ends:
            return self._banned.whole
        return self._banned.whole & ~mask_of(ends, len(self._banned.tokens.tokens))
