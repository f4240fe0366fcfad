"""Everyday task -> shell command: `everyday.txt`, written for this recipe.

Each line is a command, `::`, and wordings of its task between bars; the last of three or more wordings is
held out for evaluation. A word in braces is a name or a number, the same in task and command; if a wording
has no place for it, the command shows a placeholder, as in the tldr pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from dialogue import Conversation, ask
from numpy.random import Generator

from data.rephrase import USUAL, rephrase
from data.words import EXTENSIONS, FOLDERS, PACKAGES, STEMS, pick, words

FILE = Path(__file__).with_name("everyday.txt")
FEWEST_TO_HOLD_OUT = 3

# Wordings that begin like this are questions or noun phrases, and are not rephrased.
_NO_VERBS = frozenset(
    words("base64 case checksum diff files help how is long md5 number numeric what when where which who")
)
_NAMES = words("api app blog client demo server shop site tools web worker nginx redis firefox")
_TEXTS = words("error warning TODO hello timeout admin version password color failed")


@dataclass(frozen=True, slots=True)
class _Slot:
    """The placeholder if no value is given, and how a value is drawn."""

    shown: str
    draw: Callable[[Generator], object]


def _one_of(choices: Sequence[str]) -> Callable[[Generator], str]:
    return partial(pick, choices)


def _number(low: int, high: int) -> Callable[[Generator], int]:
    return lambda random: int(random.integers(low, high))


_SLOTS = {
    "archive": _Slot("path/to/file", _one_of(STEMS)),
    "branch": _Slot("branch_name", _one_of(words("main dev feature fix-login release test docs"))),
    "digit": _Slot("1", _number(1, 9)),
    "ext": _Slot("ext", _one_of(EXTENSIONS)),
    "file": _Slot("path/to/file", lambda random: f"{pick(STEMS, random)}.{pick(EXTENSIONS, random)}"),
    "folder": _Slot("path/to/directory", _one_of(FOLDERS)),
    "host": _Slot("host", _one_of(words("example.com server1 10.0.0.5 192.168.1.20 db.local"))),
    "image": _Slot("image", _one_of(words("ubuntu alpine nginx postgres redis python node"))),
    "name": _Slot("name", _one_of(_NAMES)),
    "number": _Slot("10", _number(2, 300)),
    "other": _Slot("replacement", _one_of(_NAMES)),
    "package": _Slot("package", _one_of(PACKAGES)),
    "pid": _Slot("process_id", _number(100, 40_000)),
    "port": _Slot("8000", _number(1000, 9999)),
    "service": _Slot("unit", _one_of(words("nginx ssh docker postgresql cron bluetooth apache2"))),
    "text": _Slot("text", _one_of(_TEXTS)),
    "url": _Slot(
        "https://example.com", _one_of(words("https://example.com/file.zip https://github.com/org/app.git"))
    ),
    "user": _Slot("username", _one_of(words("alice bob carol dave www-data root"))),
    "variable": _Slot("VARIABLE", _one_of(words("PATH EDITOR LANG HOME DEBUG"))),
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
        """A task in one of its training wordings, rephrased."""
        task = self._tasks[random.integers(len(self._tasks))]
        wording = pick(task.wordings, random)
        if wording.partition(" ")[0] not in _NO_VERBS:
            wording = rephrase(wording, "", USUAL, random, plain_share=0.5)
        elif random.random() < 0.5:
            wording += "?"
        return _filled(task.command, wording, random)

    def held_out(self) -> list[Conversation]:
        """Every task that has a held-out wording, in that wording."""
        random = np.random.default_rng(0)
        return [_filled(task.command, task.held_out, random) for task in self._tasks if task.held_out]


def _task(line: str) -> _Task:
    command, _, rest = line.partition(" :: ")
    wordings = tuple(rest.split(" | "))
    if len(wordings) < FEWEST_TO_HOLD_OUT:
        return _Task(command, wordings, "")
    return _Task(command, wordings[:-1], wordings[-1])


def _filled(command: str, wording: str, random: Generator) -> Conversation:
    values = {
        name: slot.draw(random) if f"{{{name}}}" in wording else slot.shown for name, slot in _SLOTS.items()
    }
    return ask(wording.format(**values), command.format(**values))
