"""Text from elsewhere as people and models can see all of it."""

from __future__ import annotations

import unicodedata
from functools import cache

_KEPT = "\n\t"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of control, format, surrogate, private and unassigned characters, and separators of lines."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Letters and marks that show nothing."""


def visible(text: str) -> str:
    """`text` with its ANSI sequences, zero-width, direction and other control characters written out."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


@cache
def _shown(letter: str) -> str:
    if letter in _KEPT:
        return letter
    is_selector = 0xFE00 <= ord(letter) <= 0xFE0F or 0xE0100 <= ord(letter) <= 0xE01EF
    if unicodedata.category(letter) in _HIDDEN or letter in _INVISIBLE or is_selector:
        return letter.encode("unicode_escape").decode()
    return letter


def cut(text: str, most_bytes: int) -> tuple[str, bool]:
    """The beginning of `text` of at most so many bytes of UTF-8, and whether something is missing."""
    data = text.encode(errors="surrogatepass")
    if len(data) <= most_bytes:
        return text, False
    return data[:most_bytes].decode(errors="ignore"), True
