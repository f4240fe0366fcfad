"""Everyday task → shell command: `everyday.txt`, written for this recipe.

Each of its lines is a command, `::`, and wordings of its task between bars; the last of three or more is kept
for measuring. A word in braces is a name or a number, the same in task and command; where a wording has no
place for it the command shows what belongs there, as the tldr pages do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dialogue import Conversation, ask
from numpy.random import Generator

from data.rephrase import USUAL, rephrase
from data.words import pick, words

FILE = Path(__file__).with_name("everyday.txt")
FEWEST_TO_HOLD_OUT = 3

# Wordings that begin so are questions or names of things: they stand as they are.
_NO_VERBS = frozenset(
    words("base64 case checksum diff files help how is long md5 number numeric what when where which who")
)
_STEMS = words("notes report data backup photo letter budget draft song index results config main test log")
_FOLDERS = words("src docs photos music backup projects build downloads logs work assets")
_NAMES = words("api app blog client demo server shop site tools web worker nginx redis firefox")
_TEXTS = words("error warning TODO hello timeout admin version password color failed")


@dataclass(frozen=True, slots=True)
class _Slot:
    """What is shown where no value is given, and how a value is drawn."""

    shown: str
    draw: Callable[[Generator], object]


def _one_of(text: str) -> Callable[[Generator], str]:
    return lambda random: pick(words(text), random)


def _number(low: int, high: int) -> Callable[[Generator], int]:
    return lambda random: int(random.integers(low, high))


_EXTENSIONS = "txt csv json log md pdf png py html xml"
_SLOTS = {
    "archive": _Slot("path/to/file", lambda random: pick(_STEMS, random)),
    "branch": _Slot("branch_name", _one_of("main dev feature fix-login release test docs")),
    "digit": _Slot("1", _number(1, 9)),
    "ext": _Slot("ext", _one_of(_EXTENSIONS)),
    "file": _Slot(
        "path/to/file", lambda random: f"{pick(_STEMS, random)}.{pick(words(_EXTENSIONS), random)}"
    ),
    "folder": _Slot("path/to/directory", lambda random: pick(_FOLDERS, random)),
    "host": _Slot("host", _one_of("example.com server1 10.0.0.5 192.168.1.20 db.local")),
    "image": _Slot("image", _one_of("ubuntu alpine nginx postgres redis python node")),
    "name": _Slot("name", lambda random: pick(_NAMES, random)),
    "number": _Slot("10", _number(2, 300)),
    "other": _Slot("replacement", lambda random: pick(_NAMES, random)),
    "package": _Slot("package", _one_of("vim nginx htop curl ffmpeg redis numpy requests tree express")),
    "pid": _Slot("process_id", _number(100, 40_000)),
    "port": _Slot("8000", _number(1000, 9999)),
    "service": _Slot("unit", _one_of("nginx ssh docker postgresql cron bluetooth apache2")),
    "text": _Slot("text", lambda random: pick(_TEXTS, random)),
    "url": _Slot(
        "https://example.com", _one_of("https://example.com/file.zip https://github.com/org/app.git")
    ),
    "user": _Slot("username", _one_of("alice bob carol dave www-data root")),
    "variable": _Slot("VARIABLE", _one_of("PATH EDITOR LANG HOME DEBUG")),
}


@dataclass(frozen=True, slots=True)
class _Task:
    command: str
    wordings: tuple[str, ...]
    held_out: str  # empty for none


class Everyday:
    """Draws everyday tasks with their commands."""

    name = "everyday"

    def __init__(self) -> None:
        self._tasks = [_task(line) for line in FILE.read_text().splitlines()]

    def draw(self, random: Generator) -> Conversation:
        """A task in one of the wordings to learn from, said in some manner."""
        task = self._tasks[random.integers(len(self._tasks))]
        wording = pick(task.wordings, random)
        if wording.partition(" ")[0] not in _NO_VERBS:
            wording = rephrase(wording, "", USUAL, random, plain_share=0.5)
        elif random.random() < 0.5:
            wording += "?"
        return _filled(task.command, wording, random)

    def held_out(self) -> list[Conversation]:
        """Every task that has one in its wording for measuring."""
        random = np.random.default_rng(0)
        return [_filled(task.command, task.held_out, random) for task in self._tasks if task.held_out]


def _task(line: str) -> _Task:
    command, _, rest = line.partition(" :: ")
    wordings = tuple(rest.split(" | "))
    if len(wordings) < FEWEST_TO_HOLD_OUT:
        return _Task(command, wordings, "")
    return _Task(command, wordings[:-1], wordings[-1])


def _filled(command: str, wording: str, random: Generator) -> Conversation:
    values = {name: slot.draw(random) for name, slot in _SLOTS.items()}
    shown = {name: values[name] if f"{{{name}}}" in wording else slot.shown for name, slot in _SLOTS.items()}
    return ask(wording.format(**values), command.format(**shown))
