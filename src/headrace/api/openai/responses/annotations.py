"""Citations of files in an answer: where it names a file that a search has found, or has its words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from headrace.api.openai.responses.items import FileSearchResult

TOGETHER = 6
"""Words one after another that an answer has of a passage, so that it counts as cited."""
MAX_CITATIONS = 200
_LEAST_NAME = 4
"""Characters of a name that is looked for."""
_WORD = re.compile(r"\w+")


class FileCitation(msgspec.Struct, tag_field="type", tag="file_citation", frozen=True, kw_only=True):
    """A file that the text cites up to the character `index`."""

    file_id: str
    filename: str
    index: int


def file_citations(text: str, found: Sequence[FileSearchResult]) -> list[FileCitation]:
    """The citations of an answer in order, of files among the passages that a model was given."""
    files = {one.file_id: one.filename for one in found}
    ends = {*_named(text, files), *_quoted(text, found)}
    order = {file: place for place, file in enumerate(files)}
    return [
        FileCitation(file_id=file, filename=files[file], index=index)
        for index, file in sorted(ends, key=lambda one: (one[0], order[one[1]]))[:MAX_CITATIONS]
    ]


def _named(text: str, files: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Where a text names a file, by its name or its id."""
    for file, name in files.items():
        for said in {file, name}:
            if len(said) >= _LEAST_NAME and said in text:
                for place in re.finditer(rf"(?<!\w){re.escape(said)}(?!\w)", text):
                    yield place.end(), file


def _quoted(text: str, found: Sequence[FileSearchResult]) -> Iterator[tuple[int, str]]:
    """Where words end that a text has of a passage."""
    places = list(_WORD.finditer(text))
    said = list(_together([place[0].lower() for place in places]))
    wanted, files = set(said), dict[tuple[str, ...], dict[str, None]]()
    for one in found:
        for words in wanted.intersection(_together([word.lower() for word in _WORD.findall(one.text)])):
            files.setdefault(words, {})[one.file_id] = None
    before: dict[str, None] = {}
    end = 0
    for start, words in enumerate(said):
        now = files.get(words, {})
        yield from ((end, file) for file in before if file not in now)
        before, end = now, places[start + TOGETHER - 1].end()
    yield from ((end, file) for file in before)


def _together(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(TOGETHER)), strict=False)
