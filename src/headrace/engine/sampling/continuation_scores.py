"""How likely given texts are after one prompt: the continuations of a request as sequences that share it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as PySequence

from headrace.engine.request import ChoiceFinished, ContinuationsScored, Usage
from headrace.engine.sampling.sequence_group import GroupChange
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence
from headrace.errors import HeadraceError, NumericalError
from headrace.ops.value import Array
from headrace.sampling.sampler import Sampler

Ids = tuple[int, ...]


class ContinuationScores:
    """The sums of log-probabilities of the continuations' tokens after the prompt.

    The continuations are a tree of tokens. Each way from its root to where only leaves follow is a sequence,
    which computes the rows that no sequence before it has; all find the prompt's full pages in the prefix
    tree. A row gives the log-probabilities of all tokens that follow it. The last token of a
    continuation is not computed.
    """

    def __init__(
        self,
        prompt: Ids,
        continuations: PySequence[Ids],
        new_sequence: Callable[[Ids, int], Sequence],
    ) -> None:
        """`new_sequence` makes one of the tokens after the prompt and the first token whose row counts."""
        self._prompt_length, self._continuations = len(prompt), continuations
        self._wanted: dict[Ids, dict[int, float]] = {}  # by what comes before
        for tokens in continuations:
            for place, token in enumerate(tokens):
                self._wanted.setdefault(tokens[:place], {})[token] = 0.0
        self.sequences: list[Sequence] = []
        before: Ids | None = None
        for way in _longest(self._wanted):
            known = 0 if before is None else _common(before, way) + 1
            self.sequences.append(new_sequence(way, len(prompt) - 1 + known))
            before = way
        self._first = self.sequences[0]
        self._read: set[int] = set()  # ids of sequences whose last row was read
        self.error: HeadraceError | None = None

    def read(self, chunk: ScheduledChunk, sampler: Sampler, logits: Array, first_row: int) -> None:
        """Read what follows each token of the chunk that has a row."""
        end = chunk.start + chunk.count
        tokens = chunk.sequence.tokens
        try:
            for row, place in enumerate(range(end - chunk.rows, end), first_row):
                self._score(tuple(tokens[self._prompt_length : place + 1]), sampler, logits, row)
        except NumericalError as error:
            self.error = error
        if chunk.samples:
            self._read.add(chunk.sequence.id)

    def _score(self, before: Ids, sampler: Sampler, logits: Array, row: int) -> None:
        """The log-probability of one token, and of the others the difference of their logits to it."""
        wanted = self._wanted[before]
        first = next(iter(wanted))
        [found] = sampler.score(logits, [row], [first], 0)
        for token in wanted:
            wanted[token] = found.logprob + (float(logits[row, token]) - float(logits[row, first]))

    def settle(self) -> GroupChange:
        """End the sequences that are computed; the events when all are."""
        change = GroupChange([one for one in self.sequences if one.id in self._read])
        self.sequences = [one for one in self.sequences if one.id not in self._read]
        if not self.sequences:
            sums = tuple(
                sum(self._wanted[tokens[:place]][token] for place, token in enumerate(tokens))
                for tokens in self._continuations
            )
            change.events = [ContinuationsScored(sums), ChoiceFinished(0, "stop")]
        return change

    def usage(self) -> Usage:
        """The prompt once, and the tokens of the tree: all are read, none is generated."""
        scored = sum(map(len, self._wanted.values()))
        first = self._first
        return Usage(self._prompt_length + scored, 0, first.cached_tokens, first.cache_miss_reason)


def _longest(beginnings: PySequence[Ids] | dict[Ids, dict[int, float]]) -> list[Ids]:
    """Those that no other one begins with, in order: one that goes on comes right after its beginning."""
    ordered = sorted(beginnings)
    return [
        one
        for one, after in zip(ordered, [*ordered[1:], None], strict=True)
        if after is None or after[: len(one)] != one
    ]


def _common(first: Ids, second: Ids) -> int:
    """How many tokens at their beginnings are the same."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))
