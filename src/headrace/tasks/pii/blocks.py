"""Blocks of text: pieces that no pattern reaches out of, so that a stream can be cut between them.

A block is a word, or words of which every blank stands beside a digit ("4111 1111 1111 1111", "12 March
1985"), or a private key from its first line to its last. Where a block ends depends on what comes before it
and on one character after it, never on how the text arrived.
"""

from __future__ import annotations

import re

from headrace.tasks.pii.operators import MAX_PLACEHOLDER

END = "\0"
"""Takes the place of what separates two blocks. No pattern matches it."""

MAX_SPACED = 512
MAX_WORD = 4096
MAX_KEY = 16 * 1024
"""Characters. A longer block is cut: at its first blank behind MAX_SPACED, a word without one at MAX_WORD."""

_BETWEEN = re.compile(r"\s{2,}|[^\S ]|(?<![0-9]) (?![0-9])")
_LONG = re.compile(rf"[^\0]{{{MAX_SPACED},}}")
_OPEN_PLACEHOLDER = re.compile(r"<(?:[A-Z][A-Z0-9_]*)?\Z")
_KEY_BEGINS = "-----BEGIN "
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,64}-----")


def marked(text: str) -> str:
    """The text, of equal length, with END between its blocks."""
    if _KEY_BEGINS not in text:
        return _marked(text)
    parts: list[str] = []
    done = 0
    while (start := text.find(_KEY_BEGINS, done)) >= 0:
        found = _KEY_ENDS.search(text, start, start + MAX_KEY)
        stop = found.end() if found else _place_to_cut(text, start + MAX_KEY)
        parts += [_marked(text[done:start]), text[start:stop]]
        if found is None and stop < len(text):
            parts.append(END)
            stop += 1
        done = stop
    return "".join([*parts, _marked(text[done:])])


def _marked(text: str) -> str:
    return _LONG.sub(lambda block: _cut(block[0]), _BETWEEN.sub(lambda gap: END * len(gap[0]), text))


def _cut(block: str) -> str:
    parts: list[str] = []
    start = 0
    while True:
        place = block.find(" ", start + MAX_SPACED, start + MAX_WORD)
        if place < 0:
            place = _place_to_cut(block, start + MAX_WORD)
        if place >= len(block):
            return "".join([*parts, block[start:]])
        parts += [block[start:place], END]
        start = place + 1


def _place_to_cut(text: str, place: int) -> int:
    """`place`, or before what may be a placeholder there: a half would be restored as something else."""
    if place >= len(text):
        return len(text)
    opened = text.rfind("<", place - MAX_PLACEHOLDER, place + 1)
    return opened - 1 if opened >= 0 and _OPEN_PLACEHOLDER.match(text[opened : place + 1]) else place


def committed(text: str) -> int:
    """How many characters of an unfinished text are of blocks that more text cannot change."""
    place = len(text) - 1
    marks = marked(text[: len(text) - _begun_key(text)])
    while (place := marks.rfind(END, 0, place)) >= 0:
        if not text[place + 1].isspace():
            return place + 1
    return 0


def _begun_key(text: str) -> int:
    """How many characters at the end may be the beginning of the first line of a key."""
    lengths = range(len(_KEY_BEGINS) - 1, 0, -1)
    return next((length for length in lengths if text.endswith(_KEY_BEGINS[:length])), 0)
