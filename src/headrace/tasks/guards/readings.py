"""A text as a guard reads it: as it is, without tricks of writing, and what is encoded in it."""

from __future__ import annotations

import base64
import re
import unicodedata

from headrace.tasks.pii.folding import has_control, shows_nothing

MAX_DECODED = 20_000
"""Pieces of a text that are decoded, in a tenth of a second: some words before one must not hide it."""
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{14,}")
_LINE_END = re.compile(r"(?<=[A-Za-z0-9+/_-]{14})\r?\n(?=[A-Za-z0-9+/_=-])")
_STANDARD = str.maketrans("-_", "+/")
_TEXT = re.compile(r"[^\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]{10,}")
_BLANK = "\u2800"  # a pattern of Braille without a dot
_TAGS = re.compile("[\U000e0020-\U000e007e]{4,}")
_ASCII_OF_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}


def readings(text: str) -> list[str]:
    """The text, its normal form where that is another one, and texts that it has in base64 or in tags.

    The normal form is NFKC without characters that show nothing and without marks on letters: full-width
    letters, ligatures, mathematical letters and letters with added marks become plain ones. Letters of other
    scripts that look alike stay. Tags are invisible letters, which models may read.
    """
    found = [text]
    if not text.isascii() or has_control(text):
        plain = _plain(text)
        if plain != text:
            found.append(plain)
    decoded = [*_decoded(found[-1]), *(one.translate(_ASCII_OF_TAGS) for one in _TAGS.findall(text))]
    return [*found, "\n".join(decoded)] if decoded else found


def _plain(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    drop = {
        one for one in set(apart) if one == _BLANK or unicodedata.category(one) == "Mn" or shows_nothing(one)
    }
    kept = (one for one in apart if one not in drop)
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
