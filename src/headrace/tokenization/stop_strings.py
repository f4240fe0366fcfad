"""Stop strings in a stream of text, also where they cross the borders of its chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Finds the first occurrence of any stop string and holds back text that may still begin one.

    The match that ends first wins; of several that end together, the one that begins first. With
    `include` the stop string is part of the released text. The automaton is Aho and Corasick's
    (Efficient string matching, 1975): time linear in the text, whatever the stop strings.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._include = include
        self._next: list[dict[str, int]] = [{}]
        self._depth: list[int] = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._fail = self._failures()
        self._state = 0
        self._held = ""  # always the text of the automaton's state: the longest suffix that begins a stop
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may go out, and the stop string if one is complete; after a match all else is dropped."""
        if not self._next[0]:  # without stops, as most texts are
            return text, None
        if self._matched is not None:
            return "", self._matched
        pending = self._held + text
        for offset, character in enumerate(text, start=len(self._held) + 1):
            self._step(character)
            stop = self._match[self._state]
            if stop is not None:
                self._matched, self._held = stop, ""
                return pending[: offset if self._include else offset - len(stop)], stop
        keep = len(pending) - self._depth[self._state]
        self._held = pending[keep:]
        return pending[:keep], None

    def flush(self) -> str:
        """What was held back, when the text ends without a match."""
        held, self._held = self._held, ""
        self._state = 0
        return held

    def _step(self, character: str) -> None:
        state = self._state
        while state and character not in self._next[state]:
            state = self._fail[state]
        self._state = self._next[state].get(character, 0)

    def _add(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string must not be empty")
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][character]
        self._match[state] = stop

    def _failures(self) -> list[int]:
        """For each state the longest proper suffix that is a state; it hands its match on."""
        fail = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                queue.append(child)
                back = fail[state]
                while back and character not in self._next[back]:
                    back = fail[back]
                fail[child] = self._next[back].get(character, 0)
                if self._match[child] is None:
                    self._match[child] = self._match[fail[child]]
        return fail
