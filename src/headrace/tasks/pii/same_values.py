"""What a model has found in one text of a conversation, in its other texts, too.

A model reads each text alone: it knows a name in a sentence and not in an object of JSON, or takes it for a
person here and for a place there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from headrace.tasks.pii.recognizer import RecognizerResult

LEAST_CHARACTERS = 3
"""Of a value that is looked for elsewhere: what is shorter stands for too much else."""
MARKS = "\"'`{}[](),:;<> \t\r\n"
"""Of JSON and of sentences: no part of a name at its ends."""
_WORD = re.compile(r"\w+")

Findings = Mapping[str, Sequence[RecognizerResult]]


def everywhere(texts: Sequence[str], found: Findings) -> dict[str, list[RecognizerResult]]:
    """What was `found`, by text, and where its values stand in `texts`, in the same letters and as whole
    words. Each value has one label, the first."""
    trimmed = {text: [_trimmed(text, one) for one in several] for text, several in found.items()}
    values = _values([*(one for one in texts if one in trimmed), *trimmed], trimmed)
    known = defaultdict[str, list[str]](list)
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= LEAST_CHARACTERS and (first := _WORD.match(value)):
            known[first[0]].append(value)
    for text in dict.fromkeys(texts):
        places = set(_places(text, known))
        own = [one for one in trimmed.get(text, ()) if (one.start, one.end) not in places]
        more = [
            replace(values[text[start:end]], start=start, end=end, pattern="", context=None)
            for start, end in sorted(places)
        ]
        if own or more:
            trimmed[text] = [*own, *more]
    return trimmed


def _values(texts: Sequence[str], found: Mapping[str, list[RecognizerResult]]) -> dict[str, RecognizerResult]:
    values = dict[str, RecognizerResult]()
    for text in texts:
        for one in found[text]:
            values.setdefault(text[one.start : one.end], one)
    return values


def _trimmed(text: str, one: RecognizerResult) -> RecognizerResult:
    """Without marks at its ends, where it is more than marks."""
    value = text[one.start : one.end]
    start, end = (
        one.start + len(value) - len(value.lstrip(MARKS)),
        one.end - len(value) + len(value.rstrip(MARKS)),
    )
    return replace(one, start=start, end=end) if start < end else one


def _places(text: str, known: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, int]]:
    """Where known values stand, which are looked for by their first words; the longest at each place."""
    done = 0
    for word in _WORD.finditer(text):
        if word.start() < done:
            continue
        for value in known.get(word[0], ()):
            end = word.start() + len(value)
            if text.startswith(value, word.start()) and not _WORD.match(text[end - 1 : end + 1][1:]):
                yield word.start(), end
                done = end
                break
