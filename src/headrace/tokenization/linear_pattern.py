"""Regular expressions from strangers: searched without backtracking, within a fixed number of steps."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct, field

from headrace.errors import InvalidRequest

MAX_CHARACTERS = 1000
MAX_INSTRUCTIONS = 2000
MAX_STEPS = 500_000  # a few tenths of a second

_parse: Callable[[str], Any] = importlib.import_module("re._parser").parse

_Test = Callable[[str], bool]
_Look = Callable[[str, int], bool]
_Span = tuple[int, int]
_Thread = tuple[int, _Span, int]  # instruction, group, where the match began


class _Instruction(Struct):
    """One of the machine's: what it does, where it goes on (the preferred way first)."""

    kind: Literal["character", "split", "look", "save", "match"]
    to: list[int] = field(default_factory=list[int])
    test: _Test | None = None
    look: _Look | None = None
    edge: int = 0


class LinearPattern:
    """A pattern in the syntax of Python's `re` with at most one group, without back-references, look-around,
    atomic groups and possessive repeats.

    It is run as Pike's machine (Thompson 1968; R. Cox, "Regular Expression Matching: the Virtual Machine
    Approach", 2009): threads in order of preference, so that it finds what a backtracking search finds, in
    time proportional to text times pattern. All searches of one object together take `MAX_STEPS` at most.
    """

    def __init__(self, source: str, *, param: str | None = None) -> None:
        """Raises InvalidRequest that names `param` where the pattern cannot be searched so."""
        self._param, self._steps = param, 0
        self._program: list[_Instruction] = []
        if len(source) > MAX_CHARACTERS:
            raise self._refused(f"it has {len(source):,} characters, at most {MAX_CHARACTERS:,} are allowed")
        try:
            tree = _parse(source)
            if tree.state.groups > 2:
                raise self._refused("it has several groups: write (?:...) for those that are not the answer")
            self._sequence(tree, tree.state.flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise self._refused(str(error)) from None
        self._emit("match")

    def last(self, text: str) -> str | None:
        """What the group holds in the last of all matches that do not overlap (without a group: the match);
        None where there is none. InvalidRequest where that takes too long."""
        found, start = None, 0
        while start <= len(text) and (match := self._search(text, start)) is not None:
            (first, last), group = match
            found = group if group[1] >= 0 else (first, last)
            start = last if last > first else last + 1
        return None if found is None else text[found[0] : found[1]]

    def _search(self, text: str, start: int) -> tuple[_Span, _Span] | None:
        """The first match from `start` on, and its group."""
        found: tuple[_Span, _Span] | None = None
        threads: list[_Thread] = []
        for place in range(start, len(text) + 1):
            if found is None:
                threads.append((0, (-1, -1), place))
            elif not threads:
                break
            waiting, ended = self._follow(threads, text, place)
            if ended is not None:
                found = ended
            threads = []
            if place < len(text):
                for at, group, began in waiting:
                    instruction = self._program[at]
                    assert instruction.test is not None
                    if instruction.test(text[place]):
                        threads.append((instruction.to[0], group, began))
        return found

    def _follow(
        self, threads: list[_Thread], text: str, place: int
    ) -> tuple[list[_Thread], tuple[_Span, _Span] | None]:
        """The threads up to the characters that they wait for, without those less preferred than a match."""
        waiting: list[_Thread] = []
        seen: set[int] = set()
        stack = threads[::-1]
        while stack:
            at, group, began = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            self._spend()
            instruction = self._program[at]
            if instruction.kind == "match":
                return waiting, ((began, place), group)
            if instruction.kind == "character":
                waiting.append((at, group, began))
                continue
            if instruction.look is not None and not instruction.look(text, place):
                continue
            if instruction.kind == "save":
                group = (place, -1) if instruction.edge == 0 else (group[0], place)
            stack += [(to, group, began) for to in reversed(instruction.to)]
        return waiting, None

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise self._refused(f"it took more than {MAX_STEPS:,} steps to search the text")

    def _refused(self, cause: str) -> InvalidRequest:
        return InvalidRequest(f"the pattern cannot be searched: {cause}: simplify it", param=self._param)

    # -- from the syntax tree to instructions ---------------------------------------------------------

    def _emit(self, kind: Any, **more: Any) -> int:
        """Append an instruction that goes on with the next; its place."""
        if len(self._program) >= MAX_INSTRUCTIONS:
            raise self._refused(f"with its repeats it has more than {MAX_INSTRUCTIONS:,} parts")
        self._program.append(_Instruction(kind, [len(self._program) + 1], **more))
        return len(self._program) - 1

    def _sequence(self, nodes: Iterable[tuple[Any, Any]], flags: int) -> None:
        if flags & re.ASCII:
            raise self._refused("the flag a is not supported")
        for kind, value in ((str(kind), value) for kind, value in nodes):
            if kind == "SUBPATTERN":
                self._group(value, flags)
            elif kind == "BRANCH":
                self._branch(value[1], flags)
            elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
                least, most, inner = value
                self._repeat(least, most, inner, flags, greedy=kind == "MAX_REPEAT")
            elif kind == "AT":
                self._emit("look", look=_look(str(value), flags))
            elif kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                self._emit("character", test=_test(kind, value, flags))
            else:
                raise self._refused(f"{kind.lower()} is not supported")

    def _group(self, value: tuple[int | None, int, int, Any], flags: int) -> None:
        number, added, removed, inner = value
        flags = (flags | added) & ~removed
        if number is None:
            self._sequence(inner, flags)
            return
        self._emit("save", edge=0)
        self._sequence(inner, flags)
        self._emit("save", edge=1)

    def _branch(self, alternatives: list[Any], flags: int) -> None:
        fork = self._emit("split")
        self._program[fork].to = []
        ends: list[int] = []
        for alternative in alternatives:
            self._program[fork].to.append(len(self._program))
            self._sequence(alternative, flags)
            ends.append(self._emit("split"))
        for end in ends:
            self._program[end].to = [len(self._program)]

    def _repeat(self, least: int, most: Any, inner: Any, flags: int, *, greedy: bool) -> None:
        for _ in range(least):
            before = len(self._program)
            self._sequence(inner, flags)
            if len(self._program) == before:
                return  # of nothing, however often
        endless = str(most) == "MAXREPEAT"
        forks: list[int] = []
        for _ in range(1 if endless else most - least):
            forks.append(self._emit("split"))
            self._sequence(inner, flags)
        if endless:
            self._program[self._emit("split")].to = [forks[0]]
        for fork in forks:
            ways = [fork + 1, len(self._program)]
            self._program[fork].to = ways if greedy else ways[::-1]


def _test(kind: str, value: Any, flags: int) -> _Test:
    """Whether a character fits."""
    if kind == "ANY":
        every = bool(flags & re.DOTALL)
        return lambda character: every or character != "\n"
    items = [(str(op), argument) for op, argument in value] if kind == "IN" else [(kind, value)]
    fits = _any_of(items)
    if not flags & re.IGNORECASE:
        return fits
    negated = kind == "NOT_LITERAL" or items[0][0] == "NEGATE"
    join = all if negated else any
    return lambda character: join(map(fits, {character, character.lower(), character.upper()}))


def _any_of(items: list[tuple[str, Any]]) -> _Test:
    negated = items[0][0] == "NEGATE"
    tests = [_item(kind, value) for kind, value in items if kind != "NEGATE"]
    return lambda character: any(test(character) for test in tests) != negated


def _item(kind: str, value: Any) -> _Test:
    if kind == "LITERAL":
        return lambda character: character == chr(value)
    if kind == "NOT_LITERAL":
        return lambda character: character != chr(value)
    if kind == "RANGE":
        first, last = chr(value[0]), chr(value[1])
        return lambda character: first <= character <= last
    test = _CATEGORIES[str(value).removeprefix("CATEGORY_").removeprefix("NOT_")]
    negated = "_NOT_" in str(value)
    return lambda character: test(character) != negated


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[str, _Test] = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _word}


def _look(value: str, flags: int) -> _Look:
    """Whether a place in a text fits."""
    lines = bool(flags & re.MULTILINE)

    def begins(text: str, place: int) -> bool:
        return place == 0 or (lines and value == "AT_BEGINNING" and text[place - 1] == "\n")

    def ends(text: str, place: int) -> bool:
        if place == len(text) or value != "AT_END":
            return place == len(text)
        return text[place] == "\n" and (lines or place == len(text) - 1)

    def borders(text: str, place: int) -> bool:
        before, after = text[place - 1 : place], text[place : place + 1]
        at = (before != "" and _word(before)) != (after != "" and _word(after))
        return at == (value == "AT_BOUNDARY")

    if value in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return begins
    return ends if value in ("AT_END", "AT_END_STRING") else borders
