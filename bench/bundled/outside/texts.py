"""Edits, scored by exact text, and remarks, scored by what a sensible answer has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .case import Answer, Case, lines_of

MAX_WORDS = 60


def edits() -> Iterator[Case]:
    """One for each change; the wordings go round."""
    replacing: list[str] = []
    removing: list[str] = []
    text, at = "", 0
    for line in lines_of("edits.txt"):
        if line.startswith("% "):
            replacing.append(line[2:])
        elif line.startswith("- "):
            removing.append(line[2:])
        elif (found := re.fullmatch(r"(.+?) >(?: (.+))?", line)) and found[1] in text:
            wordings = replacing if found[2] else removing
            ask = wordings[at % len(wordings)].replace("OLD", found[1]).replace("NEW", found[2] or "")
            at += 1
            yield _edit(ask, text, found[1], found[2] or "")
        elif line:
            text = line


def _edit(ask: str, text: str, old: str, new: str) -> Case:
    before, after = (r"(?<!\w)" if old[0].isalnum() else ""), (r"(?!\w)" if old[-1].isalnum() else "")
    wanted = re.sub(before + re.escape(old) + after, new, text)
    if not new:
        wanted = re.sub(r" +([.,;]|$)", r"\1", re.sub(r" {2,}", " ", wanted)).strip()

    def is_right(answer: Answer) -> bool:
        return answer.text.strip() == wanted

    return Case("edits", f"{ask}\n{text}", wanted, is_right)


def talk() -> Iterator[Case]:
    """One for each remark; questions of knowledge and other jobs are a job of their own, `refusals`."""
    kind, pattern = "", re.compile("")
    for line in lines_of("talk.txt"):
        if found := re.fullmatch(r"\[(\w+)\] (.+)", line):
            kind, pattern = found[1], re.compile(found[2], re.IGNORECASE)
        elif line:
            yield _remark(kind, pattern, line)


def _remark(kind: str, pattern: re.Pattern[str], remark: str) -> Case:
    def is_right(answer: Answer) -> bool:
        return makes_sense(answer.text) and pattern.search(answer.text) is not None

    return Case("refusals" if kind == "honest" else "small talk", remark, f"[{kind}]", is_right)


def makes_sense(text: str) -> bool:
    """A short text of whole sentences: no command, statement or call, and no words again and again."""
    words = re.findall(r"[\w'-]+", text.lower())
    fours = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return (
        0 < len(words) <= MAX_WORDS
        and text.strip()[-1] in ".!?"
        and len(set(fours)) == len(fours)
        and not re.search(r"SELECT .+ FROM|tool_call|path/to|[{}|]|(^|\s)--?\w", text)
    )
