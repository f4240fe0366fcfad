"""How likely the tokens of a prompt are, gathered chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.request import PromptLogprobs, TokenLogprob
from headrace.errors import HeadraceError, NumericalError
from headrace.ops.value import Array
from headrace.sampling.sampler import Sampler


class PromptScores:
    """Log-probabilities of all tokens of a prompt but its first, with the `tops` likeliest of each."""

    def __init__(self, prompt: Sequence[int], tops: int) -> None:
        self._prompt, self._tops = prompt, tops
        self._found: dict[int, TokenLogprob] = {}  # by place in the prompt
        self.error: HeadraceError | None = None

    def add(self, sampler: Sampler, logits: Array, first_row: int, start: int, count: int) -> None:
        """Rows first_row .. first_row + count of `logits` are those of the tokens from `start` on."""
        places = range(start + 1, min(start + count + 1, len(self._prompt)))
        tokens = [self._prompt[place] for place in places]
        rows = range(first_row, first_row + len(tokens))
        try:
            scores = sampler.score(logits, rows, tokens, self._tops)
        except NumericalError as error:
            self.error = error
            return
        for place, token, score in zip(places, tokens, scores, strict=True):
            self._found[place] = TokenLogprob(token, score.logprob, score.top, score.rank)

    def event(self) -> PromptLogprobs:
        """The event with all of them, once the prompt is computed."""
        return PromptLogprobs(tuple(self._found[place] for place in range(1, len(self._prompt))))
