"""Shell tasks, scored by a parser: pipeline, command, flags in any order, operands; with variants."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .case import Answer, Case, lines_of

SINGLE_DASH = {"find", "ffmpeg", "convert", "magick", "mogrify", "openssl"}
"""Their words after one dash are not clusters of letters."""
LONG = {
    "--all": "-a", "--almost-all": "-A", "--recursive": "-r", "--human-readable": "-h", "--reverse": "-r",
    "--force": "-f", "--parents": "-p", "--verbose": "-v", "--extract": "-x", "--file": "-f",
    "--gzip": "-z", "--create": "-c", "--list": "-t", "--lines": "-l", "--words": "-w",
    "--ignore-case": "-i", "--count": "-c", "--line-number": "-n", "--invert-match": "-v",
    "--decompress": "-d", "--keep": "-k", "--summarize": "-s", "--delimiter": "-d", "--fields": "-f",
    "--field-separator": "-F", "--in-place": "-i", "--unique": "-u", "--numeric-sort": "-n",
    "--symbolic": "-s", "--archive": "-a", "--message": "-m", "--delete": "-d", "--interactive": "-i",
    "--tty": "-t", "--tag": "-t", "--follow": "-f", "--output": "-o", "--data": "-d", "--request": "-X",
    "--remote-name": "-O", "--location": "-L", "--head": "-I", "--upgrade": "-U", "--requirement": "-r",
    "--requirements": "-r", "--unit": "-u", "--edit": "-e", "--yes": "-y", "--detach": "-d",
    "--kernel-release": "-r", "--max-depth": "-d", "--set-upstream": "-u",
}  # fmt: skip
OWN_LONG = {
    ("head", "--lines"): "-n", ("tail", "--lines"): "-n", ("head", "-c"): "-c",
    ("split", "--lines"): "-l", ("chmod", "--recursive"): "-R", ("sort", "--reverse"): "-r",
    ("cp", "-R"): "-r", ("grep", "-R"): "-r", ("rm", "-R"): "-r", ("zip", "--recurse-paths"): "-r",
    ("git", "--all"): "--all", ("git", "--delete"): "-d", ("docker", "--all"): "-a", ("tail", "-F"): "-f",
    ("rsync", "--delete"): "--delete", ("gpg", "--symmetric"): "-c", ("ls", "-R"): "-R",
    ("du", "--all"): "-a", ("git", "--set-upstream"): "-u", ("git", "-A"): "--all",
    ("sort", "--unique"): "-u", ("uniq", "--count"): "-c", ("ls", "--reverse"): "-r",
    ("shuf", "--head-count"): "-n", ("shuf", "--input-range"): "-i", ("watch", "--interval"): "-n",
    ("git", "--max-count"): "-n",
}  # fmt: skip
HARMLESS = {"-v", "--verbose", "--color", "--progress"}
STAGE = {"|", "&&", ";", "||", "&", ">", ">>", "<"}


@dataclass(frozen=True)
class Command:
    """One command of a pipeline, or the word between two."""

    name: str
    flags: frozenset[str]
    operands: tuple[str, ...]
    optional: frozenset[str] = frozenset()


def cases() -> Iterator[Case]:
    """One for each task."""
    for line in lines_of("shell.txt"):
        if line:
            task, wanted = line.split(" => ", 1)
            yield _case(task, wanted.split(" || "))


def _case(task: str, variants: Sequence[str]) -> Case:
    patterns = [_parsed(variant, is_pattern=True) for variant in variants]

    def is_right(answer: Answer) -> bool:
        return accepted(patterns, answer.text)

    return Case("shell", task, variants[0], is_right)


def matches(variants: Sequence[str], text: str) -> bool:
    """Whether a text is one of these variants."""
    return accepted([_parsed(one, is_pattern=True) for one in variants], text)


def accepted(patterns: Sequence[list[Command] | None], text: str) -> bool:
    """Whether a text, or what stands in its fence of code, is of one of these patterns."""
    fence = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", text, re.DOTALL)
    given = _parsed((fence[1] if fence else text).strip().removeprefix("$ "), is_pattern=False)
    return given is not None and any(one is not None and _alike(one, given) for one in patterns)


def _parsed(text: str, *, is_pattern: bool) -> list[Command] | None:
    if is_pattern:
        words = re.findall(r"\{[^}]*\}|\S+", text)
        words = [word[1:-1] if word.startswith("{") and word != "{}" else word for word in words]
    else:
        if "\n" in text:
            return None
        try:
            lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split, lexer.commenters = True, ""
            words = list(lexer)
        except ValueError:
            return None
    stages: list[list[str]] = [[]]
    for word in words:
        if word in STAGE:
            stages += [[word], []]
        else:
            stages[-1].append(word)
    if not stages[-1]:
        stages.pop()
    return [_command(stage) for stage in stages if stage]


def _command(words: list[str]) -> Command:
    if words[0] == "sudo" and len(words) > 2:
        words = words[1:]
    name, flags, optional, operands = words[0], set[str](), set[str](), list[str]()
    for word in words[1:]:
        if word.startswith("[-") and word.endswith("]"):
            inner = word[1:-1]
            optional |= _flags(name, inner)[0] if name not in SINGLE_DASH else {inner}
        elif word == "--":
            continue
        elif word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+[MGkd]?|-KILL", word):
            found, value = _flags(name, word)
            flags |= found
            operands += value
        elif re.fullmatch(r"-\d+", word) and name in ("head", "tail", "git"):
            flags.add("-n")
            operands.append(word[1:])
        else:
            operands.append(word)
    if name == "tar" and operands and re.fullmatch(r"[xctzvfjJ]+", operands[0]):  # tar xzf
        flags |= {f"-{letter}" for letter in operands.pop(0)}
    return Command(name, frozenset(flags), tuple(operands), frozenset(optional))


def _flags(name: str, word: str) -> tuple[set[str], list[str]]:
    """The flags that a word holds, by their short names, and the value after `=` or behind the letter."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return {OWN_LONG.get((name, flag), LONG.get(flag, flag))}, [value] if equals else []
    if name in SINGLE_DASH:
        return {word}, []
    found = re.match(r"-([A-Za-z]+)(.*)", word, re.DOTALL)
    if found is None:
        return {word}, []
    return {OWN_LONG.get((name, f"-{one}"), f"-{one}") for one in found[1]}, [found[2]] if found[2] else []


def _alike(pattern: list[Command], given: list[Command]) -> bool:
    return len(pattern) == len(given) and all(map(_fits, pattern, given))


def _fits(wanted: Command, given: Command) -> bool:
    if not _word_fits(wanted.name, given.name):
        return False
    free = "_*" in wanted.operands
    more = given.flags - wanted.flags - wanted.optional - HARMLESS
    if not wanted.flags <= given.flags or (more and not free):
        return False
    return _operands_fit(wanted.operands, given.operands)


def _operands_fit(wanted: tuple[str, ...], given: tuple[str, ...]) -> bool:
    if not wanted:
        return not given
    if wanted[0] == "_*":
        return any(_operands_fit(wanted[1:], given[at:]) for at in range(len(given) + 1))
    return bool(given) and _word_fits(wanted[0], given[0]) and _operands_fit(wanted[1:], given[1:])


def _word_fits(wanted: str, given: str) -> bool:
    if wanted == "_":
        return True
    if wanted.startswith("<"):
        return given.removeprefix("./") in wanted[1:-1].split("|")
    if "_*" in wanted:
        return given.startswith(wanted.partition("_*")[0])
    return given in (wanted, f"./{wanted}") or given == f"{wanted}/"
