"""Turns of a conversation in this surface's shape as messages for a chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from headrace.api.anthropic.body import (
    AssistantTurn,
    PromptBody,
    RedactedPart,
    SystemTurn,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    UserTurn,
)
from headrace.api.openai.schema import ParameterWarning
from headrace.chat.messages import Message, ToolCall
from headrace.errors import InvalidRequest


class Turns:
    """The messages of a body, and warnings for what of it no template can show.

    Texts of one turn are joined by line ends, and so are neighboring turns of one role. A result of a tool
    is a message of its own, with the name of the tool that was called.
    """

    def __init__(self, body: PromptBody) -> None:
        self.messages: list[Message] = []
        self.warnings: list[ParameterWarning] = []
        self._names: dict[str, str] = {}  # of tools, by the id of their call
        if body.system:
            self._add(Message("system", _joined(body.system)))
        for index, turn in enumerate(body.messages):
            where = f"messages.{index}.content"
            match turn:
                case SystemTurn():
                    self._add(Message("system", _joined(turn.content)))
                case UserTurn():
                    self._user(turn, where)
                case AssistantTurn():
                    self._assistant(turn, where)

    @property
    def is_continuation(self) -> bool:
        """Whether the answer goes on with the last message."""
        return self.messages[-1].role == "assistant"

    def _user(self, turn: UserTurn, where: str) -> None:
        if not turn.content:
            raise InvalidRequest(f"{where} is empty: give a text or a tool_result", param="messages")
        for index, part in enumerate(turn.content):
            if isinstance(part, ToolResultPart):
                self._add(self._result(part, f"{where}.{index}"))
            else:
                self._add(Message("user", part.text))

    def _result(self, part: ToolResultPart, where: str) -> Message:
        name = self._names.get(part.tool_use_id)
        if name is None:
            raise InvalidRequest(
                f"{where}.tool_use_id is {part.tool_use_id[:80]!r}, which no tool_use before it has",
                param="messages",
            )
        text = _joined(part.content)
        if part.is_error:
            text = f"Error: {text}" if text else "Error"
        return Message("tool", text, name=name, tool_call_id=part.tool_use_id)

    def _assistant(self, turn: AssistantTurn, where: str) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for index, part in enumerate(turn.content):
            match part:
                case TextPart():
                    texts.append(part.text)
                case ThinkingPart():
                    thoughts.append(part.thinking)
                case RedactedPart():
                    message = f"{where}.{index}: redacted_thinking cannot be read here, it was left out"
                    self.warnings.append(ParameterWarning("messages", message))
                case ToolUsePart():
                    self._names[part.id] = part.name
                    calls.append(ToolCall(part.id, part.name, json.dumps(part.input, ensure_ascii=False)))
        content = "\n".join(texts)
        reasoning = "\n".join(filter(None, thoughts)) or None
        self._add(
            Message(
                "assistant", content or (None if calls else ""), tool_calls=tuple(calls), reasoning=reasoning
            )
        )

    def _add(self, message: Message) -> None:
        """Put a message at the end, into the one before it where that is of the same speaker."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != message.role or message.role not in ("user", "assistant"):
            self.messages.append(message)
            return
        self.messages[-1] = replace(
            last,
            content=_either(last.content, message.content),
            tool_calls=(*last.tool_calls, *message.tool_calls),
            reasoning=_either(last.reasoning, message.reasoning),
        )


def _either(first: str | None, second: str | None) -> str | None:
    return f"{first}\n{second}" if first and second else first or second


def _joined(parts: Sequence[TextPart]) -> str:
    return "\n".join(part.text for part in parts)
