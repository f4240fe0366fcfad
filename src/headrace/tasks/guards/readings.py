"""A text as a guard reads it: as it is, without tricks of writing, and what is encoded in it."""

from __future__ import annotations

import base64
import re
import unicodedata

MAX_DECODED = 20_000
"""Pieces of a text that are decoded, in a tenth of a second: some words before one must not hide it."""
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{14,}")
_LINE_END = re.compile(r"(?<=[A-Za-z0-9+/_-]{14})\r?\n(?=[A-Za-z0-9+/_=-])")
_STANDARD = str.maketrans("-_", "+/")
_TEXT = re.compile(r"[^\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]{10,}")
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # shown as nothing, but no format


def readings(text: str) -> list[str]:
    """The text, its normal form where that is another one, and texts that it has in base64.

    The normal form is NFKC without characters that show nothing and without marks on letters: full-width
    letters, ligatures, mathematical letters and letters with added marks become plain ones. Letters of other
    scripts that look alike stay.
    """
    found = [text]
    if not text.isascii():
        plain = _plain(text)
        if plain != text:
            found.append(plain)
    decoded = _decoded(found[-1])
    return [*found, "\n".join(decoded)] if decoded else found


def _plain(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    kept = (one for one in apart if one not in _INVISIBLE and unicodedata.category(one) not in ("Cf", "Mn"))
    return unicodedata.normalize("NFKC", "".join(kept))


def _decoded(text: str) -> list[str]:
    """What is text in pieces of base64, in the standard and the URL alphabet; of lines that are cut, the
    whole. Where in a piece it begins is not known: all four places are tried."""
    joined = _LINE_END.sub("", text)
    found: list[str] = []
    for piece in _ENCODED.findall(joined)[:MAX_DECODED]:
        letters = piece.translate(_STANDARD)
        for place in range(4):
            count = (len(letters) - place) // 4 * 4
            rest = letters[place + count :]
            padded = letters[place : place + count]
            if len(rest) > 1:  # one letter alone stands for nothing
                padded += rest + "=" * (4 - len(rest))
            found += _TEXT.findall(base64.b64decode(padded).decode(errors="replace"))
    return found
