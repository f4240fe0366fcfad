"""How much JSON a body may hold, known before it is read: every value takes memory and time."""

from __future__ import annotations

from headrace.errors import InvalidRequest
from headrace.json_text import counts_of, largest_counts

LARGE_BODY_BYTES = 256 * 1024
"""Larger ones are parsed off the event loop, and what is in them is counted before."""
MAX_VALUES = 500_000
"""Other requests wait while it is read, some 30 ms for so many numbers. OpenAI takes 300,000 tokens in a
request for embeddings, the most numbers that clients send."""
MAX_OBJECTS = 50_000
"""Objects and arrays among them. Each costs a microsecond and more."""


def refuse_many_values(data: bytes) -> None:
    """InvalidRequest where a large body has more than MAX_VALUES, or MAX_OBJECTS among them. Commas and
    brackets within strings do not count, which is looked at only where there are many."""
    excess = _excess(data, exact=False) and _excess(data, exact=True)
    if excess:
        raise InvalidRequest(f"the body has {excess} are read: split the request", code="body_too_complex")


def _excess(data: bytes, *, exact: bool) -> str:
    counts = counts_of(data) if exact else largest_counts(data)
    if counts.containers > MAX_OBJECTS:
        return f"{counts.containers:,} objects and arrays, at most {MAX_OBJECTS:,}"
    if counts.values > MAX_VALUES:
        return f"{counts.values:,} values (numbers, strings, objects and others), at most {MAX_VALUES:,}"
    return ""
