"""Turns of a conversation in Anthropic's format as messages for a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from headrace.api.anthropic.body import (
    AssistantTurn,
    ImagePart,
    OnlyText,
    PromptBody,
    RedactedPart,
    SystemTurn,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    UrlSource,
    UserTurn,
)
from headrace.chat.messages import Image, Message, ToolCall, is_image_url
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext

_OWN_SIGNATURE = re.compile(r"[0-9a-f]{64}")


class Turns:
    """The messages of a body; `call` gets warnings for what of it no template can show.

    Texts of one turn are joined by line ends, and so are neighboring turns of one role. A result of a tool
    is a message of its own, with the name of the tool that was called.
    """

    def __init__(self, body: PromptBody, call: CallContext) -> None:
        self._call = call
        self._turns: list[Message] = []
        self._names: dict[str, str] = {}  # of tools, by the id of their call
        if body.system:
            self._turns.append(Message("system", _joined(body.system)))
        for index, turn in enumerate(body.messages):
            where = f"messages.{index}.content"
            match turn:
                case SystemTurn():
                    self._turns.append(Message("system", _joined(turn.content)))
                case UserTurn():
                    self._user(turn, where)
                case AssistantTurn():
                    self._assistant(turn, where)
        self.messages = _merged(self._turns)

    @property
    def is_continuation(self) -> bool:
        """Whether the answer continues the last message."""
        return self.messages[-1].role == "assistant"

    def _user(self, turn: UserTurn, where: str) -> None:
        if turn.content == []:
            raise InvalidRequest(f"{where} is empty: give a text or a tool_result", param="messages")
        content = [TextPart(text=turn.content)] if isinstance(turn.content, str) else turn.content
        for index, part in enumerate(content):
            if isinstance(part, ToolResultPart):
                self._turns.append(self._result(part, f"{where}.{index}"))
            elif isinstance(part, ImagePart):
                self._turns.append(Message("user", "", images=(_image(part, f"{where}.{index}"),)))
            else:
                self._turns.append(Message("user", part.text))

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
        content = [TextPart(text=turn.content)] if isinstance(turn.content, str) else turn.content
        for index, part in enumerate(content):
            match part:
                case TextPart():
                    texts.append(part.text)
                case ThinkingPart():
                    thoughts.append(part.thinking)
                case RedactedPart():
                    message = f"{where}.{index}: redacted_thinking cannot be read here, it was left out"
                    self._call.warn("messages", message)
                case ToolUsePart():
                    self._names[part.id] = part.name
                    calls.append(ToolCall(part.id, part.name, json.dumps(part.input, ensure_ascii=False)))
        text = "\n".join(texts)
        reasoning = "\n".join(filter(None, thoughts)) or None
        signed = [part for part in content if isinstance(part, ThinkingPart)]
        self._turns.append(
            Message(
                *("assistant", text or (None if calls else "")),
                tool_calls=tuple(calls),
                reasoning=reasoning,
                signature=_signature(signed),
            )
        )


def _merged(turns: Sequence[Message]) -> list[Message]:
    """Adjacent turns of a user or an assistant as one."""
    found: list[Message] = []
    for role, group in groupby(turns, lambda turn: turn.role):
        messages = list(group)
        if role in ("user", "assistant") and len(messages) > 1:
            calls = tuple(call for message in messages for call in message.tool_calls)
            content = _texts([message.content for message in messages])
            reasoning = _texts([message.reasoning for message in messages])
            images = _shifted(messages)
            messages = [Message(role, content, tool_calls=calls, reasoning=reasoning, images=images)]
        found += messages
    return found


def _signature(parts: Sequence[ThinkingPart]) -> str | None:
    """A remote model's signature of its reasoning; what this server signs with is no signature."""
    if len(parts) != 1 or not parts[0].thinking or not parts[0].signature:
        return None
    return None if _OWN_SIGNATURE.fullmatch(parts[0].signature) else parts[0].signature


def _image(part: ImagePart, where: str) -> Image:
    source = part.source
    url = source.url if isinstance(source, UrlSource) else f"data:{source.media_type};base64,{source.data}"
    if not is_image_url(url):
        raise InvalidRequest(f"{where}.source.url is no address of an image", param="messages")
    return Image(url, param=f"{where}.type")


def _shifted(messages: Sequence[Message]) -> tuple[Image, ...]:
    """The images of messages whose texts are joined by line ends."""
    found: list[Image] = []
    text = ""
    for message in messages:
        start = len(text) + 1 if text and message.content else len(text)
        found += [replace(image, at=start + image.at) for image in message.images]
        text = "\n".join(filter(None, (text, message.content)))
    return tuple(found)


def _texts(texts: Sequence[str | None]) -> str | None:
    return "\n".join(filter(None, texts)) or texts[-1]


def _joined(texts: str | Sequence[OnlyText]) -> str:
    return texts if isinstance(texts, str) else "\n".join(part.text for part in texts)
