"""Rephrases a task: imperatives, questions, synonyms, dropped articles."""

import re
from dataclasses import dataclass

from numpy.random import Generator

from data.words import pick


@dataclass(frozen=True, slots=True)
class Manner:
    """Ways to phrase a task: `frames` contain `{}` for the task; `synonyms` map a word to alternatives."""

    frames: tuple[str, ...]
    named_frames: tuple[str, ...]
    synonyms: dict[str, tuple[str, ...]]


PLAIN = "{}"

# For training.
USUAL = Manner(
    frames=(
        "how do I {}?",
        "how do i {}",
        "how can I {}?",
        "how to {}",
        "I want to {}",
        "I need to {}",
        "command to {}",
        "what is the command to {}?",
        "please {}",
        "{}, please",
        "can you {}?",
        "show me how to {}",
        "what is the best way to {}?",
        "give me a command to {}",
        "shell command to {}",
        "{} from the command line",
    ),
    named_frames=(
        "{} with `{tool}`",
        "{} using {tool}",
        "{tool}: {}",
        "use {tool} to {}",
        "how do I {} with {tool}?",
        "how can I use {tool} to {}?",
        "{tool} command to {}",
        "I want to {} using {tool}",
    ),
    synonyms={
        "display": ("show", "print", "list", "view"),
        "show": ("display", "print", "view"),
        "print": ("show", "display", "output"),
        "list": ("show", "display", "print", "list all"),
        "view": ("show", "look at", "display"),
        "remove": ("delete", "drop", "erase"),
        "delete": ("remove", "erase"),
        "create": ("make", "generate", "set up"),
        "generate": ("create", "make", "produce"),
        "start": ("launch", "run", "begin"),
        "launch": ("start", "open", "run"),
        "execute": ("run", "perform"),
        "run": ("execute", "start"),
        "search": ("look", "search around"),
        "find": ("search for", "look for", "locate"),
        "convert": ("turn", "change"),
        "change": ("modify", "set"),
        "edit": ("change", "modify"),
        "download": ("fetch", "get"),
        "get": ("fetch", "retrieve"),
        "copy": ("duplicate", "copy over"),
        "extract": ("unpack", "decompress"),
        "compress": ("pack", "shrink"),
        "install": ("set up", "add"),
        "uninstall": ("remove", "delete"),
        "update": ("upgrade", "bring up to date"),
        "upgrade": ("update",),
        "stop": ("end", "halt"),
        "kill": ("stop", "terminate"),
        "check": ("test", "verify"),
        "verify": ("check",),
        "directory": ("folder",),
        "directories": ("folders",),
        "using": ("with", "by"),
        "all": ("every", "all the"),
        "specific": ("given", "certain"),
        "given": ("specific", "certain"),
        "specified": ("given", "specific"),
        "current": ("present",),
        "contents": ("content",),
        "repository": ("repo",),
        "interactive": ("interactively working",),
        "information": ("info", "details"),
    },
)

# For evaluation: nothing of it occurs in training.
HELD_OUT = Manner(
    frames=(
        "help me {}",
        "which command will {}?",
        "could you tell me how to {}?",
        "I'd like to {}",
        "what should I type to {}?",
        "in a terminal, {}",
        "is there a way to {}?",
        "I have to {} now",
    ),
    named_frames=(
        "by means of {tool}, {}",
        "which {tool} command will {}?",
        "I'd like {tool} to {}",
        "could you tell me how {tool} can {}?",
    ),
    synonyms={
        "display": ("see", "give"),
        "show": ("see", "give"),
        "print": ("write out", "give"),
        "list": ("enumerate", "see"),
        "view": ("see", "read"),
        "remove": ("get rid of", "clear away"),
        "delete": ("get rid of", "clear away"),
        "create": ("build", "prepare"),
        "generate": ("build", "prepare"),
        "start": ("bring up", "fire up"),
        "launch": ("bring up", "fire up"),
        "execute": ("carry out", "start"),
        "find": ("discover", "hunt for"),
        "convert": ("transform", "translate"),
        "change": ("alter", "adjust"),
        "download": ("pull down", "grab"),
        "get": ("obtain", "grab"),
        "extract": ("unwrap", "expand"),
        "install": ("put in", "get"),
        "stop": ("shut down", "finish"),
        "check": ("inspect", "examine"),
        "directory": ("dir",),
        "using": ("by means of", "through"),
        "specific": ("particular", "chosen"),
        "given": ("particular", "chosen"),
        "information": ("data", "facts"),
    },
)

_ARTICLES = re.compile(r"\b(?:a|an|the) ", re.IGNORECASE)
_ASIDE = re.compile(r" ?\([^()]*\)")


def rephrase(task: str, tool: str, manner: Manner, random: Generator, *, plain_share: float = 0.3) -> str:
    """`task`, a description that begins with a verb, rephrased; it names `tool` unless that is empty.

    `plain_share` of the results keep the sentence form, with or without changed words.
    """
    if random.random() < 0.5:
        task = _ASIDE.sub("", task) or task
    if random.random() < 0.7:
        task = _replace_words(task, manner.synonyms, random)
    if random.random() < 0.25:
        task = _ARTICLES.sub("", task)
    plain = random.random() < plain_share
    lower = task[:1].lower() + task[1:] if task[1:2].islower() or task[1:2] == " " else task
    if tool and tool.lower() not in task.lower():
        return pick(manner.named_frames, random).format(lower, tool=tool)
    if plain:
        return pick((task, lower, f"{lower}."), random)
    return pick(manner.frames, random).format(lower)


def _replace_words(task: str, synonyms: dict[str, tuple[str, ...]], random: Generator) -> str:
    def other(match: re.Match[str]) -> str:
        choices = synonyms.get(match[0].lower())
        if choices is None or random.random() < 0.4:
            return match[0]
        word = pick(choices, random)
        return word.capitalize() if match[0][0].isupper() else word

    return re.sub(r"[A-Za-z]+", other, task)
