"""Chat messages: from the OpenAI format to the dictionaries that templates read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from headrace.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content")


class ToolCall(Struct, frozen=True):
    """A tool call of the assistant; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Image(Struct, frozen=True):
    """An image of a message: an address or a `data:` URL. It stands before the content's character `at`.

    `param` is the field that it came from, for a model that reads text only.
    """

    url: str
    at: int = 0
    detail: str | None = None
    param: str = "messages"


class Message(Struct, frozen=True):
    """One message of a conversation. `content` is None only for an assistant that just calls tools.

    `signature` is a remote model's, of its `reasoning`.
    """

    role: str
    content: str | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None
    images: tuple[Image, ...] = ()
    signature: str | None = None


def messages_from_openai(items: Sequence[object]) -> list[Message]:
    """Validate and convert `messages` of a chat request.

    Text parts of a content list are joined by newlines. Raises InvalidRequest whose `param` names the
    field, also for fields that would have no effect (null and empty ones are accepted, because clients echo
    them).
    """
    if not items:
        raise InvalidRequest("messages is empty: give at least one message", param="messages")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(items)]


def message_texts(messages: Sequence[Message]) -> str:
    """All text of `messages`, without what a template writes around it."""
    texts: list[str] = []
    for message in messages:
        texts += (message.reasoning or "", message.content or "", *(c.arguments for c in message.tool_calls))
    return "\n".join(filter(None, texts))


def left_out(messages: Sequence[Message], prompt: str) -> list[int]:
    """Which system messages do not stand in a rendered prompt; how white space is written does not matter."""
    instructions = [
        (index, message.content)
        for index, message in enumerate(messages)
        if message.role in ("system", "developer") and message.content and message.content.strip()
    ]
    if all(content.strip() in prompt for _, content in instructions):
        return []
    packed = "".join(prompt.split())
    return [index for index, content in instructions if "".join(content.split()) not in packed]


def template_messages(messages: Sequence[Message], *, knows_developer: bool = True) -> list[dict[str, Any]]:
    """The dictionaries that templates expect.

    Arguments of tool calls are parsed if they are JSON objects. Reasoning is given under each name that
    templates use. A template that does not know the role `developer` gets `system`, which `developer`
    replaced.
    """
    return [_template_message(message, knows_developer) for message in messages]


def _template_message(message: Message, knows_developer: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not knows_developer else message.role
    result: dict[str, Any] = {"role": role, "content": message.content}
    if message.name is not None:
        result["name"] = message.name
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.reasoning is not None:
        for key in ("reasoning_content", "reasoning", "thinking"):
            result[key] = message.reasoning
    if message.tool_calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return result


def _arguments(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return cast(object, value) if isinstance(value, dict) else text


def _message(item: object, where: str) -> Message:
    fields = _object(item, where)
    for key, value in fields.items():
        if key not in _FIELDS and value not in (None, [], {}, "", False):
            raise InvalidRequest(f"{where}.{key} is not supported: remove it", param=f"{where}.{key}")
    role = fields.get("role")
    if role not in ROLES:
        raise InvalidRequest(
            f"{where}.role is {role!r:.60}, expected one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    tool_calls = _tool_calls(fields.get("tool_calls"), f"{where}.tool_calls")
    if tool_calls and role != "assistant":
        raise InvalidRequest(
            f"{where}.tool_calls is in a message of role {role}: only assistants call tools",
            param=f"{where}.tool_calls",
        )
    content, images = _content(fields.get("content"), f"{where}.content", role)
    reasoning = _text(fields, "reasoning", where) or _text(fields, "reasoning_content", where)
    if content is None and not (role == "assistant" and (tool_calls or reasoning)):
        raise InvalidRequest(f"{where}.content is missing: give a string", param=f"{where}.content")
    return Message(
        role=role,
        content=content,
        name=_text(fields, "name", where),
        tool_calls=tool_calls,
        tool_call_id=_text(fields, "tool_call_id", where),
        reasoning=reasoning,
        images=images,
    )


def _content(value: object, where: str, role: str) -> tuple[str | None, tuple[Image, ...]]:
    if value is None or isinstance(value, str):
        return value, ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is neither a string nor a list of parts", param=where)
    texts: list[str] = []
    images: list[Image] = []
    for index, item in enumerate(cast(list[object], value)):
        part = _object(item, f"{where}[{index}]")
        if part.get("type") == "image_url" and role == "user":
            images.append(_image(part.get("image_url"), len("\n".join(texts)), f"{where}[{index}]"))
            continue
        if part.get("type") != "text":
            raise text_only(f"{where}[{index}].type", part.get("type"))
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{index}].text is not a string", param=f"{where}[{index}].text")
        texts.append(text)
    return "\n".join(texts), tuple(images)


def _image(value: object, at: int, where: str) -> Image:
    fields = _object(value, f"{where}.image_url")
    url, detail = _text(fields, "url", f"{where}.image_url"), _text(fields, "detail", f"{where}.image_url")
    if not is_image_url(url):
        raise InvalidRequest(
            f"{where}.image_url.url is neither an http or https address nor data:image/TYPE;base64,DATA",
            param=f"{where}.image_url",
        )
    return Image(url or "", at, detail, f"{where}.type")


def is_image_url(url: str | None) -> bool:
    """Whether a text is an address of an image, or has one in itself."""
    if url is None or "\n" in url:
        return False
    return bool(re.match(r"https?://[^\s/]|data:image/[a-z0-9.+-]+;base64,", url))


def text_only(param: str, kind: object) -> InvalidRequest:
    """The error for a part of a message that a model of this machine cannot read."""
    return InvalidRequest(
        f"{param} is {kind!r:.60}; this model reads text only: send parts of type 'text'", param=param
    )


def without_images(messages: Sequence[Message]) -> None:
    """InvalidRequest where a message has an image: models of this machine read text only."""
    for message in messages:
        if message.images:
            raise text_only(message.images[0].param, "image_url")


def parts_of(message: Message) -> list[str | Image]:
    """Text and images of a message in their order; empty texts are left out."""
    content, parts, start = message.content or "", list[str | Image](), 0
    for image in message.images:
        if text := content[start : image.at].removeprefix("\n"):
            parts.append(text)
        parts.append(image)
        start = max(start, min(image.at, len(content)))
    rest = content[start:]
    if rest := rest.removeprefix("\n") if message.images and start else rest:
        parts.append(rest)
    return parts


def _tool_calls(value: object, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} is not a list", param=where)
    return tuple(
        _tool_call(item, f"{where}[{index}]") for index, item in enumerate(cast(list[object], value))
    )


def _tool_call(item: object, where: str) -> ToolCall:
    fields = _object(item, where)
    if fields.get("type", "function") != "function":
        raise InvalidRequest(f"{where}.type is not 'function'", param=f"{where}.type")
    function = _object(fields.get("function"), f"{where}.function")
    name = _text(function, "name", f"{where}.function")
    if not name:
        raise InvalidRequest(f"{where}.function.name is missing", param=f"{where}.function.name")
    return ToolCall(
        id=_text(fields, "id", where) or "",
        name=name,
        arguments=_text(function, "arguments", f"{where}.function") or "{}",
    )


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is not an object", param=where)
    return cast(dict[str, object], value)


def _text(fields: Mapping[str, object], key: str, where: str) -> str | None:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(f"{where}.{key} is not a string", param=f"{where}.{key}")
