"""Task -> shell command, from the tldr pages."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from corpus import read_archive
from dialogue import Conversation, ask
from numpy.random import Generator

from data.rephrase import HELD_OUT, USUAL, Manner, rephrase
from data.words import EXTENSIONS, FOLDERS, PACKAGES, STEMS, pick, words

ARCHIVE = "text/tldr_pages_en.tar.xz"

# A small model learns few of the archive's 30,000 examples well, so it gets those of common commands:
# pages of these platforms that are also used on another command's page. Commands of daily use are
# drawn more often.
PLATFORMS = ("common", "linux")
EVERYDAY_WEIGHT = 2.0
EVERYDAY = words(
    """
    apt awk base64 basename bash bc bzip2 cal cargo cat cd chmod chown cmp comm cp cron crontab curl cut date
    dd df diff dig dirname dmesg docker du echo env export ffmpeg file find free fuser git gpg grep groups
    gunzip gzip head history host hostname htop id ifconfig ip jobs journalctl jq kill killall last
    less ln locate ls lsblk lscpu lsof make man md5sum mkdir more mount mv mysql nano nc netstat
    nice nohup npm nproc openssl
    passwd patch ping pip pkill printf ps psql pwd python python3 readlink rename rm rmdir rsync scp sed seq
    service sftp sha256sum shred shutdown sleep snap sort split sqlite3 ss ssh ssh-keygen stat strings su sudo
    systemctl tac tail tar tee test time timeout tmux top touch tr traceroute tree truncate type ufw umount
    uname uniq unzip uptime useradd userdel usermod vim watch wc wget whereis which who whoami xargs xz zip
    """
)

NAMED_SHARE = 0.3
FILLED_SHARE = 0.3

_EXAMPLE = re.compile(r"^- (.+?):?\n\n`(.+)`$", re.MULTILINE)
_WORD = re.compile(r"[\w.+-]+")
# The noun phrase in a task, how it occurs in the command, and what it may be replaced with.
_FILLS = (
    (r"file", r"path/to/(?:input_)?file(\.\w+)?(?![\w/.])", STEMS),
    (r"(?:\w+ )?(?:image|archive|script)", r"path/to/\w+(\.\w+)(?![\w/.])", STEMS),
    (r"directory|folder", r"path/to/directory(?![\w/.])", FOLDERS),
    (r"package", r"(?<![\w/.-])package(?:_name)?$", PACKAGES),
)


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a page. `ambiguous`: other commands have the same task text."""

    tool: str
    task: str
    command: str
    weight: float
    ambiguous: bool


class Shell:
    """Draws tasks with their commands; raises MissingData."""

    name = "shell"

    def __init__(self, data: Path) -> None:
        self.examples = _read_pages(data / ARCHIVE)
        weights = np.array([example.weight for example in self.examples])
        self._cumulative = np.cumsum(weights / weights.sum())

    def draw(self, random: Generator) -> Conversation:
        """An example in training wording, with file names filled in if possible."""
        at = int(np.searchsorted(self._cumulative, random.random()))
        example = self.examples[min(at, len(self.examples) - 1)]
        task, command = example.task, example.command
        if random.random() < FILLED_SHARE:
            task, command = _fill(task, command, random)
        named = example.ambiguous or random.random() < NAMED_SHARE
        return ask(rephrase(task, example.tool if named else "", USUAL, random), command)

    def held_out(
        self, count: int, seed: int, *, everyday: bool = False
    ) -> list[tuple[Example, Conversation]]:
        """Examples from all pages equally, in held-out wordings; ambiguous ones name their tool."""
        random = np.random.default_rng([seed, 1])
        chosen = [e for e in self.examples if not everyday or e.weight >= EVERYDAY_WEIGHT]
        picks = random.permutation(len(chosen))[:count]
        return [(chosen[at], held_out_question(chosen[at], HELD_OUT, random)) for at in picks]


def held_out_question(example: Example, manner: Manner, random: Generator) -> Conversation:
    """The example in the wording of `manner`, never as on the page."""
    tool = example.tool if example.ambiguous else ""
    return ask(rephrase(example.task, tool, manner, random, plain_share=0.0), example.command)


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of the archive: `family` is the command's first word, shared by its subcommands."""

    tool: str
    family: str
    weight: float
    examples: list[tuple[str, str]]


def _read_pages(path: Path) -> list[Example]:
    pages = _known([_page(name, text) for name, text in sorted(read_archive(path).items())])
    tasks = {(page.tool, task.lower()) for page in pages for task, _ in page.examples}
    tools = Counter(task for _, task in tasks)
    return [
        Example(page.tool, task, command, page.weight, tools[task.lower()] > 1)
        for page in pages
        for task, command in page.examples
    ]


def _page(name: str, text: str) -> _Page:
    """The page, without examples if it is of another platform."""
    *_, platform, file = name.split("/")
    tool = text.partition("\n")[0].removeprefix("#").strip()
    weight = EVERYDAY_WEIGHT if file.removesuffix(".md").partition("-")[0] in EVERYDAY else 1.0
    examples = [
        (clean_task(task), clean_command(command))
        for task, command in _EXAMPLE.findall(text)
        # Keystrokes inside a program, and references to other pages, are not commands.
        if not task.startswith("[Interactive]") and not command.startswith(("tldr ", "<"))
    ]
    return _Page(tool, tool.partition(" ")[0], weight, examples if platform in PLATFORMS else [])


def _known(pages: list[_Page]) -> list[_Page]:
    """The pages of commands that are of daily use or occur on another command's page."""
    users: defaultdict[str, set[str]] = defaultdict(set)
    for page in pages:
        for _, command in page.examples:
            for word in _WORD.findall(command):
                users[word].add(page.family)
    return [page for page in pages if page.weight == EVERYDAY_WEIGHT or users[page.family] - {page.family}]


def clean_task(task: str) -> str:
    """Without the page's markup: `E[x]tract` becomes Extract, code and links become plain words."""
    task = re.sub(r"\[(\w{1,3})\]", r"\1", task.replace("`", ""))
    task = re.sub(r"<(https?://[^>]*)>", r"\1", task)
    return task[:1].upper() + task[1:]


def clean_command(command: str) -> str:
    """Without the braces of placeholders. Of an option's spellings, keep the long one, which says what it
    does; of other alternatives, the first: `{{[-C|--directory]}} {{path/to/file.tar[.gz|.xz]}}`
    becomes `--directory path/to/file.tar.gz`.
    """

    def plain(match: re.Match[str]) -> str:
        inner = match[1]
        option = re.fullmatch(r"\[(?:[^|\]]+\|)+([^|\]]*)\]", inner)
        if option:
            return option[1]
        inner = re.sub(r"\[([^|\]]*)\|[^\]]*\]", r"\1", inner)
        if "|" in inner and " " not in inner:
            inner = inner.partition("|")[0]
        return inner

    command = re.sub(r"(?<!\\)\{\{(.*?)\}\}(?!\})", plain, command)
    return command.replace(r"\{\{", "{{").replace(r"\}\}", "}}")


def _fill(task: str, command: str, random: Generator) -> tuple[str, str]:
    """The task with "a file" (folder, package) replaced by a name, if it has exactly one such place."""
    for noun, place, names in _FILLS:
        said = re.search(rf"\b(?:a|an|the)(?: specific| given| specified)? ({noun})\b(?! or| and)", task)
        places = list(re.finditer(place, command))
        if said and len(places) == 1:
            name = pick(names, random)
            if names is STEMS:
                name += places[0][1] or "." + pick(EXTENSIONS, random)
            spoken = f"the {said[1]} {name}" if random.random() < 0.4 else name
            return task.replace(said[0], spoken, 1), command.replace(places[0][0], name, 1)
    return task, command
