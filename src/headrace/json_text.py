"""What the bytes of a JSON text tell beside its values: how many there are, and keys that are there twice."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import msgspec
import numpy as np
from msgspec import Struct

STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
"""A string with its escapes; possessive, so that a hostile text cannot make it backtrack."""

_ESCAPED_COLON = re.compile(rb"(?<!\\)(?:\\\\)*+\\u003[aA]")
_PIECE_BYTES = 2**20
"""Between two pieces other threads get the interpreter lock."""
_QUOTE, _COMMA = ord('"'), ord(",")
_OPENING = (ord("{"), ord("["))


class JsonCounts(Struct, frozen=True):
    """`values` of all kinds but keys (empty objects and arrays count twice), `containers` among them."""

    values: int
    containers: int


def largest_counts(raw: bytes) -> JsonCounts:
    """No fewer than `counts_of`, some milliseconds for 32 MB: signs within strings count as well."""
    containers = raw.count(b"{") + raw.count(b"[")
    return JsonCounts(raw.count(b",") + containers + 1, containers)


def counts_of(raw: bytes) -> JsonCounts:
    """How much is in a JSON text, without reading it; of what is no JSON it says something."""
    commas = containers = begin = 0
    inside = np.uint8(0)
    while begin < len(raw):
        end = _piece_end(raw, begin + _PIECE_BYTES)
        plain = raw[begin:end].replace(rb"\\", b"  ").replace(rb"\"", b"  ")
        signs = np.frombuffer(plain, np.uint8)
        within = np.bitwise_xor.accumulate((signs == _QUOTE).view(np.uint8)) ^ inside
        inside = within[-1]
        outside = within == 0
        commas += int(np.count_nonzero((signs == _COMMA) & outside))
        containers += sum(int(np.count_nonzero((signs == sign) & outside)) for sign in _OPENING)
        begin = end
    return JsonCounts(commas + containers + 1, containers)


def _piece_end(raw: bytes, end: int) -> int:
    """From `end` on, the first place that is not within an escape."""
    while 0 < end < len(raw) and raw[end - 1] == ord("\\"):
        end += 1
    return min(end, len(raw))


def has_key_twice(raw: bytes, value: object) -> bool:
    """Whether an object in the JSON text `raw`, which msgspec has read as `value`, has a key twice.

    msgspec keeps one of two equal keys and says nothing, so what it has read is written again and colons are
    counted. Strings have as many of them as before, and every key has one beside it. Where a key was dropped
    there are fewer.
    """
    colons = raw.count(b":")
    if b"\\u003" in raw:
        colons += sum(1 for _ in _ESCAPED_COLON.finditer(raw))
    return colons != msgspec.json.encode(value).count(b":")


def key_count(raw: bytes) -> int:
    """How many keys all objects of a JSON text have together: one colon is beside each, and there are no
    others outside of strings."""
    return STRING.sub(b"", raw).count(b":")


def key_twice(raw: bytes) -> str:
    """The first key that an object has twice, "" where there is none. Takes long for large texts."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)

    with suppress(ValueError, RecursionError):
        json.loads(raw, object_pairs_hook=look)
    return found[0] if found else ""
