"""The parts of a choice as chat messages and their deltas."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from headrace.api.openai.schema import CalledFunction, ChatDelta, ChatMessage, MessageCall, ToolCallDelta
from headrace.chat.output_parser import ParsedOutput
from headrace.chat.tool_formats.events import AnswerEvent, Arguments, CallStart, Reasoning, Text


def chat_message(output: ParsedOutput) -> ChatMessage:
    """A whole message."""
    content, reasoning = output.content, output.reasoning
    calls = [MessageCall(call.id, CalledFunction(call.name, call.arguments)) for call in output.calls]
    return ChatMessage(
        content=content or (None if calls else ""),
        reasoning=reasoning or UNSET,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def chat_delta(parts: Sequence[AnswerEvent]) -> ChatDelta | None:
    """What parts add to a message; None where that is nothing visible."""
    if len(parts) == 1 and type(parts[0]) is Text:  # most deltas
        return ChatDelta(content=parts[0].text)
    content = "".join(part.text for part in parts if isinstance(part, Text))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls: dict[int, ToolCallDelta] = {}
    for part in parts:
        if isinstance(part, CallStart):
            function = CalledFunction(part.name, "")
            calls[part.index] = ToolCallDelta(part.index, function, id=part.id, type="function")
        elif isinstance(part, Arguments):
            calls[part.index] = _with_arguments(calls.get(part.index), part)
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
