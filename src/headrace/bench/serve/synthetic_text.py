"""Words that a server counts as so many tokens, from which texts of a wanted length are made."""

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
FIRST = "a"  # what every made-up text begins with
_REPEATS = 8


class SyntheticText(Struct, frozen=True):
    """`costs[i]` tokens for `words[i]` after a space, and `base_tokens` for a prompt that is only `FIRST`,
    with what the server adds to it: marks of the beginning, a chat template. `counted` says that these are
    the server's own counts; otherwise a word is taken for a token."""

    words: tuple[str, ...]
    costs: tuple[int, ...]
    base_tokens: int
    counted: bool

    def words_of(self, tokens: int, rng: np.random.Generator) -> list[str]:
        """Random words of so many tokens, or as few less as the dearest word allows."""
        words: list[str] = []
        while tokens > 0:
            fitting = [index for index, cost in enumerate(self.costs) if cost <= tokens]
            if not fitting:
                break
            if len(fitting) == len(self.costs):  # draw all at once as long as any word fits
                fitting = rng.integers(0, len(self.costs), max(1, tokens // max(self.costs))).tolist()
            else:
                fitting = [int(rng.choice(fitting))]
            words += [self.words[index] for index in fitting]
            tokens -= sum(self.costs[index] for index in fitting)
        return words


def text_of(words: Iterable[str]) -> str:
    """The text that a lexicon's words make."""
    return " ".join([FIRST, *words])


ASSUMED = SyntheticText(WORDS, (1,) * len(WORDS), 1, counted=False)
"""Where nothing is known of a server's tokenizer."""


async def read_lexicon(target: Target, model: str) -> SyntheticText:
    """Ask the server's /tokenize what each word costs; `ASSUMED` where it has none. Raises ServerTrouble."""
    single = await count_tokens(target, model, FIRST)
    if single is None:
        return ASSUMED
    base = await count_tokens(target, model, FIRST, chat=True) if target.endpoint == "chat" else None
    costs: dict[str, int] = {}
    for word in WORDS:
        count = await count_tokens(target, model, text_of([word] * _REPEATS))
        cost, rest = divmod((count or 0) - single, _REPEATS)
        if cost > 0 and rest == 0:  # otherwise it depends on its neighbors
            costs[word] = cost
    if not costs:
        return ASSUMED
    return SyntheticText(tuple(costs), tuple(costs.values()), base or single, counted=True)
