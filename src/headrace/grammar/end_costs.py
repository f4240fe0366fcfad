"""Which tokens probably lead to the end of a text that follows a grammar."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_CLOSING: Final = b"\"']});"
"""Those that are certain to close something, if they may come, first."""
_OPENING, _SPACES = frozenset(b",([{|:"), frozenset(b" \t\r\n")
_DIGITS: Final = frozenset(b"0123456789*.")
_LONGEST: Final = 16


def end_costs(tokens: list[bytes]) -> NDArray[np.float32]:
    """How far each token leads away from an end, as far as its characters tell: quotes and closing brackets,
    then digits, words (long ones first), and what opens or goes on a list."""
    return np.array([_cost(token) for token in tokens], np.float32)


def _cost(token: bytes) -> float:
    held = set(token)
    if not held or held <= _SPACES:
        return 10.0
    if held & _OPENING:
        return 8.0
    if held <= set(_CLOSING):
        return 0.1 * _CLOSING.index(token[:1]) + 0.1 * len(token)
    if held <= _DIGITS:
        return 1.5 + 0.1 * len(token)
    return (4.0 if held & set(_CLOSING) else 3.0) - min(len(token), _LONGEST) / _LONGEST
