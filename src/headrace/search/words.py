"""Queries of the full-text index from what people write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

MAX_WORDS = 64
"""Different words of a query that are looked up; each costs a pass over the texts that have it."""
_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(Path(__file__).with_name("stop_words.txt").read_text().split())


class WordQuery(Struct, frozen=True):
    """Words and phrases of which a text has any, and those of which it has each."""

    any_of: tuple[str, ...]
    all_of: tuple[str, ...]


def words_of(text: str, keywords: Sequence[str] = ()) -> WordQuery:
    """The words of a text, without stop words where others are left, of which any is looked for, and those of
    each of `keywords`, which must be there as well."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))
    told = [word for word in words if word not in STOP_WORDS] or words
    phrases = (" ".join(_WORD.findall(keyword)) for keyword in keywords)
    return WordQuery(tuple(told[:MAX_WORDS]), tuple(phrase for phrase in phrases if phrase))


def match_of(text: str, keywords: Sequence[str] = ()) -> str | None:
    """The MATCH expression for `words_of` a text. None where there is no word.

    Words are quoted, so no text is an expression of its own.
    """
    wanted = words_of(text, keywords)
    any_of = " OR ".join(f'"{word}"' for word in wanted.any_of)
    parts = ([f"({any_of})"] if any_of else []) + [f'"{phrase}"' for phrase in wanted.all_of]
    return " AND ".join(parts) or None
