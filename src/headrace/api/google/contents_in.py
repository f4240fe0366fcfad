"""Turns in Google's format as messages for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.api.google.body import Content, FunctionResponse, Part, PromptBody
from headrace.chat.messages import Image, Message, ToolCall, is_image_url
from headrace.errors import InvalidRequest

_KINDS = ("text", "inline_data", "file_data", "function_call", "function_response")


class Contents:
    """The messages of a body. Texts of one turn are one text; a response of a function is a message of its
    own, with the id of the call that it answers."""

    def __init__(self, body: PromptBody) -> None:
        self.messages: list[Message] = []
        self._open: list[tuple[str, str]] = []  # names and ids of calls without a response
        self._calls = 0
        if body.system_instruction is not None:
            self._system(body.system_instruction, "systemInstruction")
        for index, turn in enumerate(body.contents):
            self._turn(turn, f"contents[{index}]")
        if not self.messages:
            raise InvalidRequest("contents has nothing but empty texts: give a text", param="contents")

    @property
    def is_continuation(self) -> bool:
        """Whether the answer continues the last message."""
        last = self.messages[-1]
        return last.role == "assistant" and bool(last.content) and not last.tool_calls

    def _system(self, turn: Content, where: str) -> None:
        texts = [part.text or "" for part in turn.parts if _kind(part, where) == "text"]
        if len(texts) != len(turn.parts):
            raise InvalidRequest(f"{where} has parts that are no text: send texts only", param=where)
        self.messages.append(Message("system", "\n".join(texts)))

    def _turn(self, turn: Content, where: str) -> None:
        if not turn.parts:
            raise InvalidRequest(f"{where}.parts is empty: give a text", param="contents")
        if turn.role == "system":
            self._system(turn, where)
        elif turn.role == "model":
            self._model(turn, where)
        else:
            self._user(turn, where)

    def _user(self, turn: Content, where: str) -> None:
        text, images = "", list[Image]()
        for index, part in enumerate(turn.parts):
            place = f"{where}.parts[{index}]"
            kind = _kind(part, place)
            if kind == "text":
                text += part.text or ""
            elif part.function_response is not None:
                self.messages.append(self._response(part.function_response, place))
            elif kind == "function_call":
                raise InvalidRequest(f"{place}.functionCall: only the model makes calls", param="contents")
            else:
                images.append(_image(part, place, len(text)))
        if text or images:
            self.messages.append(Message("user", text, images=tuple(images)))

    def _model(self, turn: Content, where: str) -> None:
        text, thought, calls = "", "", list[ToolCall]()
        for index, part in enumerate(turn.parts):
            place = f"{where}.parts[{index}]"
            kind = _kind(part, place)
            if part.thought:
                thought += part.text or ""
            elif kind == "text":
                text += part.text or ""
            elif part.function_call is not None:
                call = part.function_call
                self._calls += 1
                call_id = call.id or f"call_{self._calls}"
                self._open.append((call.name, call_id))
                calls.append(ToolCall(call_id, call.name, json.dumps(call.args or {}, ensure_ascii=False)))
            else:
                raise InvalidRequest(
                    f"{place}: the model's turns have texts and calls only", param="contents"
                )
        content = text or (None if calls else "")
        self.messages.append(
            Message("assistant", content, tool_calls=tuple(calls), reasoning=thought or None)
        )

    def _response(self, response: FunctionResponse, where: str) -> Message:
        """The call that it answers has its id, or without an id its name: the first that is open."""
        for entry in self._open:
            if response.id == entry[1] or (response.id is None and response.name == entry[0]):
                self._open.remove(entry)
                return Message("tool", _text_of(response.response), name=response.name, tool_call_id=entry[1])
        raise InvalidRequest(
            f"{where}.functionResponse answers {response.name[:80]!r}, which no functionCall before it has "
            "called",
            param="contents",
        )


def _kind(part: Part, where: str) -> str:
    given = [name for name in _KINDS if getattr(part, name) is not None]
    if len(given) != 1:
        said = " and ".join(given) if given else "nothing"
        raise InvalidRequest(f"{where} has {said}: a part is one thing", param="contents")
    return given[0]


def _image(part: Part, where: str, at: int) -> Image:
    if (data := part.inline_data) is not None:
        name, kind, url = "inlineData", data.mime_type, f"data:{data.mime_type};base64,{data.data}"
    else:
        assert part.file_data is not None
        name, kind, url = "fileData", part.file_data.mime_type or "image/*", part.file_data.file_uri
    if not kind.startswith("image/"):
        raise InvalidRequest(
            f"{where}.{name} is {kind[:60]!r}: texts and images are read here", param="contents"
        )
    if not is_image_url(url):
        raise InvalidRequest(f"{where}.{name} is no address of an image", param="contents")
    return Image(url, at, param=f"{where}.{name}")


def _text_of(response: Mapping[str, Any]) -> str:
    """A response as the model reads it: where it has nothing but a text, that text."""
    values = list(response.values())
    if len(values) == 1 and next(iter(response)) in ("output", "result") and isinstance(values[0], str):
        return values[0]
    return json.dumps(response, ensure_ascii=False)
