"""Passages for a model that answers from them, and the citations of its answer, each checked.

A passage is written with its source, `[key:start-end]`. An answer cites `[key:start-end]`, with words that it
quotes in front: "…" [key:start-end]. A citation is right if a passage that was given has these characters,
and quoted words are in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from headrace.search.index import TextSpan
from headrace.search.searching import NamedHit

MAX_PASSAGES = 50
MAX_CITATIONS = 500
_CITED = re.compile(
    r"(?:[\"“]([^\"“”\[\]]{1,2000})[\"”]\s{0,4})?\[([^\[\]\n]{1,1024}):(\d{1,12})-(\d{1,12})\]"
)


class Citation(Struct, frozen=True, kw_only=True):
    """A citation at the characters [place.start, place.end) of an answer. `problem` says why it is wrong,
    None where it is right; `index` and `title` are those of the passage that it names."""

    place: TextSpan
    key: str
    span: TextSpan
    quote: str | None
    problem: str | None
    index: str | None = None
    title: str | None = None


def passages(found: Sequence[NamedHit]) -> str:
    """What a model reads of hits: each passage with its source. Text of documents cannot pose as a source:
    brackets that look like one are opened."""
    parts: list[str] = []
    for one in found[:MAX_PASSAGES]:
        hit = one.hit
        text = _CITED.sub(lambda cited: cited[0].replace("[", "(").replace("]", ")"), hit.text)
        parts.append(f"[{hit.key}:{hit.span.start}-{hit.span.end}]\n{text}")
    return "\n\n".join(parts)


def citations(answer: str, found: Sequence[NamedHit]) -> list[Citation]:
    """The citations of an answer in order, checked against the passages that it was given."""
    checked: list[Citation] = []
    for cited in _CITED.finditer(answer):
        if len(checked) == MAX_CITATIONS:
            break
        key, span = cited[2], TextSpan(int(cited[3]), int(cited[4]))
        around = [
            one
            for one in found
            if one.hit.key == key and one.hit.span.start <= span.start < span.end <= one.hit.span.end
        ]
        source = around[0] if around else None
        checked.append(
            Citation(
                place=TextSpan(*cited.span()),
                key=key,
                span=span,
                quote=cited[1],
                problem=_problem(source, key, span, cited[1], found),
                index=source and source.index,
                title=source and source.hit.title,
            )
        )
    return checked


def _problem(
    source: NamedHit | None, key: str, span: TextSpan, quote: str | None, found: Sequence[NamedHit]
) -> str | None:
    if source is None:
        known = any(one.hit.key == key for one in found)
        return "no passage that was given has these characters" if known else "no passage was given of it"
    start = source.hit.span.start
    text = source.hit.text[span.start - start : span.end - start]
    if quote is not None and _words(quote) not in _words(text):
        return "the quoted words are not there"
    return None


def _words(text: str) -> str:
    return " ".join(text.lower().split())
