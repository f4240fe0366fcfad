"""The output of one choice behind guards: text is held until its sentence has been checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.chat.tool_formats.events import AnswerEvent, Reasoning, Text
from headrace.inference.call_context import CallContext
from headrace.inference.events import GuardVerdict
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.guards.check import check, redactor_of
from headrace.tasks.guards.sentences import Sentences
from headrace.tasks.guards.settings import GuardSettings
from headrace.tasks.pii.redaction import Redactor
from headrace.tasks.pii.streaming import StreamingRedactor


class GuardedText:
    """Text or reasoning: through the guards that redact, then sentence by sentence the others."""

    def __init__(
        self,
        kind: type[Text] | type[Reasoning],
        checks: Mapping[str, GuardSettings],
        redactors: Mapping[str, Redactor],
        runner: ModelRunner,
        call: CallContext,
    ) -> None:
        self._kind, self._checks, self._runner, self._call = kind, checks, runner, call
        self._redactors = {name: StreamingRedactor(one) for name, one in redactors.items()}
        self._sentences = Sentences()
        self.verdicts: list[GuardVerdict] = []
        self.is_blocked = False

    async def feed(self, text: str) -> list[AnswerEvent]:
        """What may be shown of it and of what came before."""
        for one in self._redactors.values():
            text = one.feed(text)
        sentences = self._sentences.feed(text) if self._checks else [text]
        return await self._checked(sentences)

    async def finish(self) -> list[AnswerEvent]:
        """What may be shown of the rest."""
        text = ""
        for name, one in self._redactors.items():
            text = one.feed(text) + one.finish()
            if one.entities:
                best = max(one.entities, key=lambda it: it.score)
                self.verdicts.append(GuardVerdict(name, "output", "redact", best.label, best.score))
        sentences = [*self._sentences.feed(text), self._sentences.finish()] if self._checks else [text]
        return await self._checked(sentences)

    async def _checked(self, sentences: Sequence[str]) -> list[AnswerEvent]:
        shown: list[AnswerEvent] = []
        for sentence in filter(None, sentences):
            if self.is_blocked:
                break
            _, verdicts = await check(self._checks, sentence, "output", self._runner, self._call)
            self.verdicts += verdicts
            self.is_blocked = any(one.action == "block" for one in verdicts)
            if not self.is_blocked:
                shown.append(self._kind(sentence))
        return shown


class GuardedChoice:
    """The parts of a choice. Text and reasoning are checked each by itself; calls of tools pass unchecked."""

    def __init__(self, guards: Mapping[str, GuardSettings], runner: ModelRunner, call: CallContext) -> None:
        on_output = {name: one for name, one in guards.items() if "output" in one.on}
        self._checks = {name: one for name, one in on_output.items() if one.action != "redact"}
        self._redacting = {name: one for name, one in on_output.items() if one.action == "redact"}
        self._runner, self._call = runner, call
        self._open: GuardedText | None = None
        self._kind: type[AnswerEvent] | None = None
        self.verdicts: list[GuardVerdict] = []
        self.is_blocked = False

    async def feed(self, parts: Sequence[AnswerEvent]) -> list[AnswerEvent]:
        """What may be shown now."""
        shown: list[AnswerEvent] = []
        for part in parts:
            if self.is_blocked:
                break
            if self._kind is not type(part):
                shown += await self.finish()
            if isinstance(part, Text | Reasoning):
                shown += await self._text(type(part), part.text)
            elif not self.is_blocked:
                shown.append(part)
        return shown

    async def finish(self) -> list[AnswerEvent]:
        """What may be shown of what is held, at the end of the text."""
        opened, self._open, self._kind = self._open, None, None
        if opened is None or self.is_blocked:
            return []
        shown = await opened.finish()
        self._note(opened)
        return shown

    async def _text(self, kind: type[Text] | type[Reasoning], text: str) -> list[AnswerEvent]:
        if self._open is None:
            redactors = {name: redactor_of(name, one) for name, one in self._redacting.items()}
            self._open = GuardedText(kind, self._checks, redactors, self._runner, self._call)
            self._kind = kind
        shown = await self._open.feed(text)
        if self._open.is_blocked:
            self._note(self._open)
        return shown

    def _note(self, opened: GuardedText) -> None:
        self.verdicts += opened.verdicts
        opened.verdicts = []
        self.is_blocked = opened.is_blocked
