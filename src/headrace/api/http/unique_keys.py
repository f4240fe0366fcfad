"""JSON objects must not have a key twice: readers disagree about which of the two counts."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import msgspec

from headrace.errors import InvalidRequest

NAMED_BYTES = 2**20
"""In larger bodies the key is not looked for: that would hold the interpreter lock for a second."""

_ESCAPED_COLON = re.compile(rb"(?<!\\)(?:\\\\)*+\\u003[aA]")


def refuse_duplicate_keys(body: bytes) -> None:
    """InvalidRequest where an object in `body` has a key twice, with its name. What is no JSON passes.

    msgspec keeps one of two equal keys and says nothing, so what it reads is written again and colons are
    counted. Texts have as many of them as before, and every key has one beside it. Where a key was dropped
    there are fewer.
    """
    try:
        kept = msgspec.json.encode(msgspec.json.decode(body)).count(b":")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return  # the reader of the body says what is wrong
    colons = body.count(b":")
    if b"\\u003" in body:
        colons += sum(1 for _ in _ESCAPED_COLON.finditer(body))
    if colons != kept:
        key = _duplicate(body) if len(body) <= NAMED_BYTES else ""
        raise InvalidRequest(
            f"the body has {f'the key {key!r}' if key else 'a key'} twice in one object: send it once",
            param=key or None,
            code="duplicate_key",
        )


def _duplicate(body: bytes) -> str:
    """The first key that is there twice, shortened."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=look)
    return found[0][:80] if found else ""
