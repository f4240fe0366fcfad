"""Questions and the passages that answer them: headings and their sections, sentences and what is around
them, tasks and commands."""

import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corpus import MissingData, read_archive, read_novels

from data.documents import ARCHIVE, ENDINGS, clean
from data.shell import Shell
from data.sql import Sql, statement

HELD_OUT_PROJECTS = ("astral-sh+uv", "ollama+ollama", "encode+httpx", "simonw+datasette")
WIKITEXT = "text/wikitext-2/valid.txt.xz"
SHORTEST, LONGEST = 80, 600  # characters of a passage
_HEADING = re.compile(r"^(?:#{1,5} +(?P<marked>.+?)#*|(?P<under>[^\n]{3,80})\n[=~^*-]{3,})$", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the passage that answers it."""

    text: str
    passage: str


@dataclass(frozen=True, slots=True)
class PassageSources:
    """Questions by source; a passage of the same source may be the wrong answer to another question."""

    learned: dict[str, list[Question]]
    held_out: dict[str, list[Question]]


def read_passages(data: Path) -> PassageSources:
    """Raises MissingData naming the first missing file."""
    files = read_archive(data / ARCHIVE)
    documents = [(name, clean(text)) for name, text in sorted(files.items()) if name.endswith(ENDINGS)]
    seen = [text for name, text in documents if not _is_held_out(name)]
    unseen = [text for name, text in documents if _is_held_out(name)]
    wiki = _read_wikitext(data / WIKITEXT)
    shell, sql = Shell(data), Sql(data)
    learned = {
        "headings": _unique(one for text in seen for one in by_heading(text)),
        "sentences": _unique(one for text in seen for one in by_sentence(text)),
        "prose": _unique(one for text in read_novels(data / "text").plain for one in by_sentence(text)),
        "shell": _unique(
            Question(one.task, f"{one.tool}: {one.command}") for one in shell.examples if not one.ambiguous
        ),
        "sql": _unique(Question(one.text, statement(one, "t")) for one in sql.examples),
    }
    held_out = {
        "headings of unseen projects": _unique(one for text in unseen for one in by_heading(text)),
        "sentences of unseen projects": _unique(one for text in unseen for one in by_sentence(text)),
        "sentences of WikiText-2": _unique(one for text in wiki for one in by_sentence(text)),
    }
    return PassageSources(learned, held_out)


def by_heading(text: str) -> Iterator[Question]:
    """The headings of a document as questions, the text up to the next one as passages."""
    found = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in found), len(text)][1:]
    for match, end in zip(found, ends, strict=True):
        heading = re.sub(r"[`*_]|\[|\]\([^)]*\)", "", match["marked"] or match["under"]).strip()
        passage = _passage(text[match.end() : end])
        if len(heading) >= 8 and len(passage) >= SHORTEST:
            yield Question(heading, passage)


def by_sentence(text: str) -> Iterator[Question]:
    """A sentence from the middle of each paragraph as the question, the others as the passage (the inverse
    cloze task: Lee et al. 2019)."""
    for paragraph in re.split(r"\n\s*\n", text):
        sentences = [one.strip() for one in _SENTENCE.split(" ".join(paragraph.split()))]
        if len(sentences) < 3:
            continue
        middle = len(sentences) // 2
        passage = _passage(" ".join(sentences[:middle] + sentences[middle + 1 :]))
        if 30 <= len(sentences[middle]) <= 200 and len(passage) >= SHORTEST:
            yield Question(sentences[middle], passage)


def _passage(text: str) -> str:
    return " ".join(text.split())[:LONGEST]


def _unique(questions: Iterator[Question]) -> list[Question]:
    """One question per text and passage: another answer would be right too."""
    texts: dict[str, Question] = {}
    for one in questions:
        texts.setdefault(one.text.lower(), one)
    return list({one.passage: one for one in texts.values()}.values())


def _is_held_out(name: str) -> bool:
    return any(project in name for project in HELD_OUT_PROJECTS)


def _read_wikitext(path: Path) -> list[str]:
    if not path.is_file():
        raise MissingData(f"{path} is missing: pass --data the folder that holds {WIKITEXT}")
    text = lzma.decompress(path.read_bytes()).decode()
    text = re.sub(r" @(.)@ ", r"\1", text.replace("<unk>", "one"))
    text = re.sub(r" ([,.;:)!?'])", r"\1", text).replace("( ", "(")
    return [line for line in text.split("\n") if not line.strip().startswith("=")]
