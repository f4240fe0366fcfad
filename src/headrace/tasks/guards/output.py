"""The output of one choice behind guards: text is held until its sentence has been checked, a call until it
is complete, and all of it where a guard reads whole answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)
from headrace.inference.call_context import CallContext
from headrace.inference.events import GuardVerdict
from headrace.tasks.guards.calls import call_text, redacted_arguments
from headrace.tasks.guards.check import GuardChecks, redactor_of
from headrace.tasks.guards.redacting import PieceRedactor, SentenceRedactor
from headrace.tasks.guards.sentences import Sentences
from headrace.tasks.guards.settings import GuardSettings
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.pii.streaming import StreamingRedactor

WINDOW = 1000
"""Characters before a sentence that it is read with."""
Guards = Mapping[str, GuardSettings]
TextKind = type[Text] | type[Reasoning]


class OutputGuards:
    """Those of a request that read the output: guards that redact, guards of whole answers, and the rest."""

    def __init__(self, guards: Guards, checks: GuardChecks, call: CallContext) -> None:
        on_output = {name: one for name, one in guards.items() if one.reads("output")}
        self.whole = {name: one for name, one in on_output.items() if one.kind == "schema"}
        self.redacting = {name: one for name, one in on_output.items() if one.action == "redact"}
        left = on_output.keys() - self.whole.keys() - self.redacting.keys()
        self.checking = {name: one for name, one in on_output.items() if name in left}
        self.holds_all = any(one.action == "block" for one in self.whole.values())
        self.checks, self.call = checks, call

    async def verdicts(self, text: str, before: str = "") -> list[GuardVerdict]:
        """Of the guards that only check."""
        return (await self.checks.check(self.checking, text, "output", self.call, before))[1]


class GuardedText:
    """Text or reasoning: through the guards that redact, then sentence by sentence the others. `before` is
    text that was shown earlier."""

    def __init__(self, kind: TextKind, guards: OutputGuards, before: str) -> None:
        self._kind, self._guards = kind, guards
        self._redactors = {name: _redactor(name, one) for name, one in guards.redacting.items()}
        self._sentences = Sentences()
        self.before = before
        self.verdicts: list[GuardVerdict] = []
        self.is_blocked = False

    async def feed(self, text: str) -> list[AnswerEvent]:
        """What may be shown of it and of what came before."""
        for one in self._redactors.values():
            text = one.feed(text)
        sentences = self._sentences.feed(text) if self._guards.checking else [text]
        return await self._checked(sentences)

    async def finish(self) -> list[AnswerEvent]:
        """What may be shown of the rest."""
        text = ""
        for name, one in self._redactors.items():
            text = one.feed(text) + one.finish()
            if one.entities:
                best = max(one.entities, key=lambda it: it.score)
                self.verdicts.append(GuardVerdict(name, "output", "redact", best.label, best.score))
        is_checked = bool(self._guards.checking)
        sentences = [*self._sentences.feed(text), self._sentences.finish()] if is_checked else [text]
        return await self._checked(sentences)

    async def _checked(self, sentences: Sequence[str]) -> list[AnswerEvent]:
        shown: list[AnswerEvent] = []
        for sentence in filter(None, sentences):
            if self.is_blocked:
                break
            verdicts = await self._guards.verdicts(sentence, self.before)
            self.before = (self.before + sentence)[-WINDOW:]
            self.verdicts += verdicts
            self.is_blocked = any(one.action == "block" for one in verdicts)
            if not self.is_blocked:
                shown.append(self._kind(sentence))
        return shown


class GuardedCall:
    """A call of a tool while it arrives."""

    def __init__(self, start: CallStart) -> None:
        self._start, self._written = start, list[str]()
        self._redactors: dict[str, Redactor] = {}
        self.verdicts: list[GuardVerdict] = []

    def add(self, arguments: str) -> None:
        """Take a fragment of its arguments."""
        self._written.append(arguments)

    async def finish(self, guards: OutputGuards, *, is_complete: bool) -> list[AnswerEvent]:
        """Its parts where they may be shown."""
        arguments = "".join(self._written)
        for name, guard in guards.redacting.items():
            self._redactors[name] = redactor_of(name, guard)  # one, so that two texts have two placeholders
            arguments = redacted_arguments(arguments, partial(self._redacted, name))
        self.verdicts += await guards.verdicts(call_text(self._start.name, arguments))
        index = self._start.index
        parts: list[AnswerEvent] = [self._start, *([Arguments(index, arguments)] if arguments else [])]
        return [*parts, CallEnd(index)] if is_complete else parts

    def _redacted(self, name: str, text: str) -> str:
        done = self._redactors[name].redact(text)
        if done.entities and all(one.guard != name for one in self.verdicts):
            best = max(done.entities, key=lambda it: it.score)
            self.verdicts.append(GuardVerdict(name, "output", "redact", best.label, best.score))
        return done.text


class GuardedChoice:
    """The parts of a choice. Text and reasoning are checked each by itself, a call as a unit."""

    def __init__(self, guards: OutputGuards) -> None:
        self._guards = guards
        self._open: GuardedText | None = None
        self._kind: TextKind | None = None
        self._call: GuardedCall | None = None
        self._before: dict[TextKind, str] = {}
        self._held, self._answer = list[AnswerEvent](), list[str]()
        self.verdicts: list[GuardVerdict] = []
        self.is_blocked = False

    async def feed(self, parts: Sequence[AnswerEvent]) -> list[AnswerEvent]:
        """What may be shown now."""
        shown: list[AnswerEvent] = []
        for part in parts:
            if self.is_blocked:
                break
            if isinstance(part, Text | Reasoning):
                shown += await self._text(type(part), part.text)
            else:
                shown += await self._close_text()
                shown += await self._of_call(part)
        return self._or_held(shown)

    async def finish(self) -> list[AnswerEvent]:
        """What may be shown of what is held, at the end of the choice."""
        shown = await self._close_text()
        if self._call is not None and not self.is_blocked:
            shown += await self._close_call(is_complete=False)
        shown = self._or_held(shown)
        if self._guards.whole and not self.is_blocked:
            self._take(self._guards.checks.check_whole(self._guards.whole, "".join(self._answer).strip()))
        held, self._held = self._held, []
        return [] if self.is_blocked and self._guards.holds_all else [*held, *shown]

    def _or_held(self, shown: list[AnswerEvent]) -> list[AnswerEvent]:
        """All that is shown, or nothing while a guard waits for the whole answer."""
        if self._guards.whole:
            self._answer += [one.text for one in shown if isinstance(one, Text)]
        if not self._guards.holds_all:
            return shown
        self._held += shown
        return []

    async def _text(self, kind: TextKind, text: str) -> list[AnswerEvent]:
        shown: list[AnswerEvent] = []
        if self._kind is not kind:
            shown += await self._close_text()
            if self.is_blocked:
                return shown
        if self._open is None:
            self._open, self._kind = GuardedText(kind, self._guards, self._before.get(kind, "")), kind
        shown += await self._open.feed(text)
        self._note(self._open)
        return shown

    async def _close_text(self) -> list[AnswerEvent]:
        opened, kind = self._open, self._kind
        self._open = self._kind = None
        if opened is None or kind is None or self.is_blocked:
            return []
        shown = await opened.finish()
        self._before[kind] = opened.before
        self._note(opened)
        return shown

    async def _of_call(self, part: CallStart | Arguments | CallEnd | CallFailed) -> list[AnswerEvent]:
        if self.is_blocked:
            return []
        if isinstance(part, CallStart):
            self._call = GuardedCall(part)
        elif isinstance(part, CallFailed):
            self._call = None  # its start was not shown; what it said follows as text
        elif self._call is not None and isinstance(part, Arguments):
            self._call.add(part.text)
        elif self._call is not None:
            return await self._close_call(is_complete=True)
        return []

    async def _close_call(self, *, is_complete: bool) -> list[AnswerEvent]:
        call, self._call = self._call, None
        assert call is not None
        shown = await call.finish(self._guards, is_complete=is_complete)
        self._take(call.verdicts)
        return [] if self.is_blocked else shown

    def _note(self, opened: GuardedText) -> None:
        self._take(opened.verdicts)
        opened.verdicts = []

    def _take(self, verdicts: Sequence[GuardVerdict]) -> None:
        self.verdicts += verdicts
        self.is_blocked = self.is_blocked or any(one.action == "block" for one in verdicts)


def _redactor(name: str, guard: GuardSettings) -> PieceRedactor:
    found: Redactor = redactor_of(name, guard)
    return StreamingRedactor(found) if guard.kind == "pii" else SentenceRedactor(found)
