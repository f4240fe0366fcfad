"""Queries of the full-text index from what people write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

MAX_WORDS = 64
"""Different words of a query that are looked up; each costs a pass over the texts that have it."""
_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(Path(__file__).with_name("stop_words.txt").read_text().split())


def match_of(text: str, keywords: Sequence[str] = ()) -> str | None:
    """The MATCH expression for a text: any of its words, without stop words where others are left. Each of
    `keywords` must be there as well. None where there is no word.

    Words are quoted, so no text is an expression of its own.
    """
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))
    told = [word for word in words if word not in STOP_WORDS] or words
    any_of = " OR ".join(f'"{word}"' for word in told[:MAX_WORDS])
    phrases = (" ".join(_WORD.findall(keyword)) for keyword in keywords)
    all_of = [f'"{phrase}"' for phrase in phrases if phrase]
    parts = ([f"({any_of})"] if any_of else []) + all_of
    return " AND ".join(parts) or None
