"""One choice's answer as chat messages and their deltas: text, reasoning, tool calls."""

from __future__ import annotations

from msgspec import UNSET

from headrace.api.wire import CalledFunction, ChatDelta, ChatMessage, MessageCall, ToolCallDelta
from headrace.chat.answer import Answer, AnswerParser
from headrace.chat.tool_formats.output import AnswerEvent, Arguments, CallStart, Reasoning, Text


class ChoiceAnswer:
    """Takes the text of one choice and gives what is new in it, and the whole in the end.

    `reasoning_tokens` counts tokens up to the one that ends the reasoning. Without a parser all is text.
    """

    def __init__(self, parser: AnswerParser | None) -> None:
        self.reasoning_tokens = 0
        self._parser = parser
        self._answer = Answer()

    def feed(self, text: str, tokens: int) -> ChatDelta | None:
        """What `tokens` tokens with that text add; None where that is nothing to be seen."""
        if self._parser is None:
            return self._delta([Text(text)] if text else [])
        thought = self._parser.thinking
        events = self._parser.feed(text)
        if thought or self._parser.thinking:
            self.reasoning_tokens += tokens
        return self._delta(events)

    def finish(self, reason: str) -> tuple[ChatDelta | None, str]:
        """What the end adds, and the reason to report: calls, where it ended by itself and made some."""
        events = [] if self._parser is None else self._parser.finish(cut=reason != "stop")
        delta = self._delta(events)
        return delta, self._answer.reason(reason)

    def message(self) -> ChatMessage:
        """All of it."""
        content, reasoning = self._answer.content, self._answer.reasoning
        calls = [
            MessageCall(call.id, CalledFunction(call.name, call.arguments)) for call in self._answer.calls
        ]
        return ChatMessage(
            content=content or (None if calls else ""),
            reasoning=reasoning or UNSET,
            reasoning_content=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )

    def _delta(self, events: list[AnswerEvent]) -> ChatDelta | None:
        content = "".join(event.text for event in events if isinstance(event, Text))
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        self._answer.take(events)
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
