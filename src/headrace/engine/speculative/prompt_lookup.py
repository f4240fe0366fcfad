"""Prompt lookup: what followed the end of a text where it stood before, in the prompt or the output."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import _native
from headrace._native import MATCH_KINDS

_APART = -1  # between the prediction and the prompt: nothing goes on across it


class Lookup:
    """One text's drafts by lookup (Saxena 2023, "Prompt lookup decoding"), in O(1) a token: a suffix
    automaton (Blumer et al. 1985) holds every repetition, not only those of some length.

    `prediction` is what the client expects to be said: it is looked up as if it stood before the prompt, and
    followed without looking as long as it comes true from its beginning.
    """

    __slots__ = ("_before", "_followed", "_prediction", "_prompt_length", "text")

    def __init__(self, prompt_length: int, prediction: Sequence[int] = ()) -> None:
        self.text = _native.SuffixAutomaton()
        self._prediction, self._prompt_length = list(prediction), prompt_length
        if prediction:
            self.text.extend([*prediction, _APART])
        self._before = self.text.size
        self._followed = 0  # tokens of the prediction that came true

    @property
    def fresh(self) -> bool:
        """Whether nothing has been taken yet: the prompt still has to be."""
        return self.text.size == self._before

    def follow(self, tokens: Sequence[int]) -> int:
        """Take those of `tokens`, which has grown, that no call has told the text of. How good a draft would
        now be: a class below MATCH_KINDS of the length of what is found, or -1."""
        self.catch_up(tokens)
        if self._comes_true(tokens):
            return MATCH_KINDS - 1
        return self.text.match_kind

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Take what has not been taken of `tokens`."""
        taken = self.text.size - self._before
        if taken < len(tokens):
            self.text.extend(tokens[taken:])

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that may follow `tokens`, which have been followed."""
        if self._comes_true(tokens):
            at = len(tokens) - self._prompt_length
            return self._prediction[at : at + count]
        return self.text.draft(count)

    def _comes_true(self, tokens: Sequence[int]) -> bool:
        """Whether the prediction says what follows."""
        if not self._prediction:
            return False
        at = len(tokens) - self._prompt_length
        if at > self._followed:
            if self._prediction[self._followed : at] != list(tokens[self._prompt_length + self._followed :]):
                self._prediction = []
            self._followed = at
        return at < len(self._prediction)
