"""One choice's answer: taken apart into text, reasoning and calls, and as chat messages and their deltas."""

from __future__ import annotations

from msgspec import UNSET

from headrace.api.openai.schema import CalledFunction, ChatDelta, ChatMessage, MessageCall, ToolCallDelta
from headrace.chat.output_parser import OutputParser, ParsedOutput
from headrace.chat.tool_formats.events import AnswerEvent, Arguments, CallStart, Reasoning, Text


class AnswerReader:
    """Takes the text of one choice and gives what happens in it; `answer` is all of it so far.

    `reasoning_tokens` counts tokens up to the one that ends the reasoning. Without a parser all is text.
    """

    def __init__(self, parser: OutputParser | None) -> None:
        self.reasoning_tokens = 0
        self.answer = ParsedOutput()
        self._parser = parser

    def feed(self, text: str, tokens: int) -> list[AnswerEvent]:
        """What `tokens` tokens with that text add."""
        if self._parser is None:
            return self._taken([Text(text)] if text else [])
        thought = self._parser.thinking
        events = self._parser.feed(text)
        if thought or self._parser.thinking:
            self.reasoning_tokens += tokens
        return self._taken(events)

    def finish(self, reason: str) -> tuple[list[AnswerEvent], str]:
        """What the end adds, and the reason to report: calls, where it ended by itself and made some."""
        events = self._taken([] if self._parser is None else self._parser.finish(cut=reason != "stop"))
        return events, self.answer.reason(reason)

    def _taken(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        self.answer.take(events)
        return events


class ChoiceAnswer:
    """One choice in the shape of chat completions: what is new in it, and the whole in the end."""

    def __init__(self, parser: OutputParser | None) -> None:
        self._reader = AnswerReader(parser)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens up to the one that ends the reasoning."""
        return self._reader.reasoning_tokens

    def feed(self, text: str, tokens: int) -> ChatDelta | None:
        """What `tokens` tokens with that text add; None where that is nothing to be seen."""
        return self._delta(self._reader.feed(text, tokens))

    def finish(self, reason: str) -> tuple[ChatDelta | None, str]:
        """What the end adds, and the reason to report."""
        events, reported = self._reader.finish(reason)
        return self._delta(events), reported

    def message(self) -> ChatMessage:
        """All of it."""
        answer = self._reader.answer
        content, reasoning = answer.content, answer.reasoning
        calls = [MessageCall(call.id, CalledFunction(call.name, call.arguments)) for call in answer.calls]
        return ChatMessage(
            content=content or (None if calls else ""),
            reasoning=reasoning or UNSET,
            reasoning_content=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )

    def _delta(self, events: list[AnswerEvent]) -> ChatDelta | None:
        content = "".join(event.text for event in events if isinstance(event, Text))
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        calls: dict[int, ToolCallDelta] = {}
        for event in events:
            if isinstance(event, CallStart):
                function = CalledFunction(event.name, "")
                calls[event.index] = ToolCallDelta(event.index, function, id=event.id, type="function")
            elif isinstance(event, Arguments):
                calls[event.index] = _with_arguments(calls.get(event.index), event)
        if not content and not reasoning and not calls:
            return None
        return ChatDelta(
            content=content or UNSET,
            reasoning=reasoning or UNSET,
            reasoning_content=reasoning or UNSET,
            tool_calls=list(calls.values()) or UNSET,
        )


def _with_arguments(begun: ToolCallDelta | None, more: Arguments) -> ToolCallDelta:
    if begun is None:
        return ToolCallDelta(more.index, CalledFunction(arguments=more.text))
    function = CalledFunction(begun.function.name, begun.function.arguments + more.text)
    return ToolCallDelta(begun.index, function, id=begun.id, type=begun.type)
