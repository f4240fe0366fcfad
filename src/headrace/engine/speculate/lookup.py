"""Prompt lookup: what followed the end of a text where it stood before, in the prompt or the output."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import _native

_APART = -1  # between the prediction and the prompt: nothing goes on across it
LENGTH_CLASSES = 6


class Lookup:
    """One text's drafts by lookup (Saxena 2023, "Prompt lookup decoding"), in O(1) a token: a suffix
    automaton (Blumer et al. 1985) holds every repetition, not only those of some length.

    `prediction` is what the client expects to be said: it is looked up as if it stood before the prompt, and
    followed without looking as long as it comes true from its beginning.
    """

    __slots__ = ("_prediction", "_prompt_length", "_taken", "_text")

    def __init__(self, prompt_length: int, prediction: Sequence[int] = ()) -> None:
        self._text = _native.SuffixAutomaton()
        self._prediction, self._prompt_length = list(prediction), prompt_length
        if prediction:
            self._text.extend([*prediction, _APART])
        self._taken = 0  # tokens of the text

    def draft(self, tokens: list[int], count: int) -> tuple[int, list[int]]:
        """Up to `count` tokens that may follow `tokens`, which has grown since the last call, and how good
        they are: a class below LENGTH_CLASSES of the length of what was found."""
        at = len(tokens) - self._prompt_length
        if self._prediction:
            generated = tokens[max(self._taken, self._prompt_length) :]
            if self._prediction[at - len(generated) : at] != generated:
                self._prediction = []
        if self._taken < len(tokens):
            self._text.extend(tokens[self._taken :])
            self._taken = len(tokens)
        if at < len(self._prediction):
            return LENGTH_CLASSES - 1, self._prediction[at : at + count]
        length = self._text.match_length
        if length == 0:
            return 0, []
        return min(length.bit_length() - 1, LENGTH_CLASSES - 1), self._text.draft(count)
