"""Synthetic text: words with known token counts, from which texts of a given length are made."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from headrace.bench.serve.target import Target, count_tokens

_PLAIN = (
    "a and the of to in was that he it his her with as for had you not be is at on by she which have or "
    "from this him but all they were my are me one their so an said them we who would been will no when "
    "there if more out up into do any your what has man could other than our some very time about"
)
WORDS = tuple(_PLAIN.split())
FIRST = "a"  # first word of every synthetic text
_REPEATS = 8


class SyntheticText(Struct, frozen=True):
    """`costs[i]` tokens for `words[i]` after a space, and `base_tokens` for a prompt with only `FIRST`,
    including what the server adds (BOS token, chat template). `counted`: these are the server's own
    counts; otherwise one word is assumed to be one token.
    """

    words: tuple[str, ...]
    costs: tuple[int, ...]
    base_tokens: int
    counted: bool

    def words_of(self, tokens: int, rng: np.random.Generator) -> list[str]:
        """Random words with this many tokens, or fewer by less than the longest word's count."""
        words: list[str] = []
        while tokens > 0:
            fitting = [index for index, cost in enumerate(self.costs) if cost <= tokens]
            if not fitting:
                break
            if len(fitting) == len(self.costs):  # draw many in one call as long as any word fits
                fitting = rng.integers(0, len(self.costs), max(1, tokens // max(self.costs))).tolist()
            else:
                fitting = [int(rng.choice(fitting))]
            words += [self.words[index] for index in fitting]
            tokens -= sum(self.costs[index] for index in fitting)
        return words


def text_of(words: Iterable[str]) -> str:
    """The text of a list of words."""
    return " ".join([FIRST, *words])


ASSUMED = SyntheticText(WORDS, (1,) * len(WORDS), 1, counted=False)
"""Assumption if the server has no tokenizer endpoint."""


async def read_lexicon(target: Target, model: str) -> SyntheticText:
    """Measure the token counts of words with the server's /tokenize; `ASSUMED` without. Raises
    ServerError.
    """
    single = await count_tokens(target, model, FIRST)
    if single is None:
        return ASSUMED
    base = await count_tokens(target, model, FIRST, chat=True) if target.endpoint == "chat" else None
    costs: dict[str, int] = {}
    for word in WORDS:
        count = await count_tokens(target, model, text_of([word] * _REPEATS))
        cost, rest = divmod((count or 0) - single, _REPEATS)
        if cost > 0 and rest == 0:  # otherwise the count depends on neighboring words
            costs[word] = cost
    if not costs:
        return ASSUMED
    return SyntheticText(tuple(costs), tuple(costs.values()), base or single, counted=True)
