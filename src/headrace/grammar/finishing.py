"""A short way to the end of a grammar, for outputs that have to end within their tokens."""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from headrace.grammar.token_table import GrammarTokens

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_PLACES: Final = 256
"""Of a grammar that a search looks at: half of them along the way that looks best, the others where the
costs are lowest."""
MAX_TRIED: Final = 8
"""Tokens at one place: those that look most like an end."""
SLICE_S: Final = 0.001
_MIN_MARGIN: Final = 32
_AGAIN: Final = 2.0
"""For the same token twice: a quote after a quote may be one inside a text."""


class _Way(Struct, frozen=True, eq=False):
    """From a search's start to `before`, and one more token; `masks` say which tokens might come there, and
    one token earlier."""

    before: LLMatcher
    tokens: tuple[int, ...] = ()
    token: int | None = None
    masks: tuple[bytes, ...] = ()


class EndSearch:
    """Looks for a short way from a place to an end, the same one each time. It need not be the shortest."""

    def __init__(self, state: LLMatcher, tokens: GrammarTokens, most: int) -> None:
        """A way of at most `most` tokens."""
        self._start, self._tokens, self._most = state, tokens, most
        self._looked_at, self._pushed = 0, 0
        self._seen: set[bytes] = set()
        self._ways: list[tuple[float, int, _Way]] = []
        self._begin()
        self.found: list[int] | None = None

    def run(self) -> bool:
        """Go on for SLICE_S; whether the search is over."""
        until_s = time.monotonic() + SLICE_S
        while self.found is None and self._ways and self._looked_at < MAX_PLACES:
            self._looked_at += 1
            cost, _, way = heapq.heappop(self._ways)
            self._look(cost, way)
            if self._looked_at == MAX_PLACES // 2 or (self._deepens and not self._ways):
                self._looked_at = MAX_PLACES // 2
                self._begin()
            if time.monotonic() > until_s:
                return self.found is not None
        self._ways.clear()
        return True

    @property
    def _deepens(self) -> bool:
        return self._looked_at < MAX_PLACES // 2

    def _begin(self) -> None:
        self._seen.clear()
        self._ways[:] = [(0.0, 0, _Way(self._start))]

    def _look(self, cost: float, way: _Way) -> None:
        state, tokens = way.before.deep_copy(), way.tokens
        if way.token is not None and not state.consume_token(way.token):
            return
        if not state.is_stopped():
            certain = state.compute_ff_tokens()
            if certain and not state.consume_tokens(certain):
                return
            tokens, cost = (*tokens, *certain), cost + len(certain)
        if len(tokens) > self._most or state.is_error():
            return
        if state.is_stopped():
            self.found = list(tokens)
        elif state.is_accepting() and self._tokens.eos_token_id is not None:
            self.found = [*tokens, self._tokens.eos_token_id]
        else:
            self._push(state, tokens, cost, way.masks)

    def _push(self, state: LLMatcher, tokens: tuple[int, ...], cost: float, masks: tuple[bytes, ...]) -> None:
        mask = bytes(state.compute_bitmask())
        if state.is_error() or (self._deepens and mask in masks):  # the tokens have closed nothing
            return
        costs, texts = self._tokens.end_costs, self._tokens.tokens
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        allowed = bits[: len(costs)].nonzero()[0]
        best = allowed[np.argsort(costs[allowed], kind="stable")[:MAX_TRIED]]
        before = b"".join(texts[token] for token in tokens)
        for token in map(int, best):
            text = before + texts[token]
            if text in self._seen:
                continue
            self._seen.add(text)
            self._pushed += 1
            more = float(costs[token]) + (_AGAIN if tokens and tokens[-1] == token else 0.0)
            key = more - 100.0 * len(tokens) if self._deepens else cost + more
            heapq.heappush(
                self._ways, (key, self._pushed, _Way(state, (*tokens, token), token, (mask, *masks[:1])))
            )


class Finishing:
    """Ends one output within its tokens: near the last of them, a short way to the end is all it may take."""

    def __init__(self, tokens: GrammarTokens, budget: int) -> None:
        """`budget` is the most tokens the output may have, with those before the grammar starts."""
        self._tokens, self._budget = tokens, budget
        self._next, self._margin = 0, 0
        self._search: EndSearch | None = None
        self.began = False

    def way(self, state: LLMatcher, taken: int) -> list[int] | bool:
        """After `taken` tokens: the tokens to the end once nothing else may come; otherwise whether the
        output may go on; False asks to be called again, for the same place."""
        if self.began or taken < self._next:
            return True
        left = self._budget - taken
        if self._search is None:
            self._search = EndSearch(state, self._tokens, left)
        if not self._search.run():
            return False
        found, self._search = self._search.found, None
        length = left if found is None else len(found)
        if not self._margin:
            self._margin = max(1, min(max(_MIN_MARGIN, length), self._budget // 4))
        free = left - length - self._margin
        if found is not None and free <= 0:
            self.began = True
            return found
        self._next = taken + max(1, left // 2 if found is None else free // 4)
        return True
