"""Which form of messages a chat template renders right, found out by small conversations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct

from headrace.errors import TemplateError

PROBE_LIMIT_S = 2.0
"""CPU time after which no further form is tried."""
_TOWN, _SKY, _TEXT = "Probetown", "probesky", "probetext"
_EMPTY: tuple[dict[str, Any], ...] = ({"content": None}, {"content": ""}, {})
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "description": "Town"}},
            "required": ["town"],
        },
    },
}
Render = Callable[[list[dict[str, Any]], list[Any] | None], str]


class CallForm(Struct, frozen=True):
    """How a message with tool calls is given: `empty` is what stands for no content, also for an empty
    text where `also_text`; arguments are an object, or their JSON where `json_arguments`."""

    empty: Mapping[str, Any]
    also_text: bool
    json_arguments: bool

    def apply(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message in this form."""
        calls = message.get("tool_calls")
        if not calls:
            return message if message["content"] is not None else {**message, "content": ""}
        result = dict(message)
        if message["content"] is None or (self.also_text and message["content"] == ""):
            del result["content"]
            result |= self.empty
        if self.json_arguments:
            result["tool_calls"] = [_with_json(call) for call in calls]
        return result


def call_form(render: Render) -> CallForm:
    """The first form whose rendering shows the arguments and the result and no `None`, or the best one."""
    ends_s = time.thread_time() + PROBE_LIMIT_S
    scores: dict[tuple[bool, int], tuple[int, ...]] = {}
    for as_json, number in product((False, True), range(len(_EMPTY))):
        scores[as_json, number] = _score(render, _EMPTY[number], as_json)
        if scores[as_json, number] == _BEST or time.thread_time() > ends_s:
            break
    as_json, number = max(scores, key=lambda key: scores[key])
    if scores[as_json, number] == _WORST:
        number = 1  # the template's own refusal is the clearest for a text
    text = scores.get((as_json, 1)) or _score(render, _EMPTY[1], as_json)
    return CallForm(_EMPTY[number], text < scores[as_json, number], as_json)


def needs_parts(render: Render) -> bool:
    """Whether the template shows content only as a list of parts."""

    def shows(content: object) -> bool:
        try:
            return _TEXT in render([{"role": "user", "content": content}], None)
        except TemplateError:
            return False

    return not shows(_TEXT) and shows(parts_of(_TEXT))


def parts_of(text: str) -> list[dict[str, str]]:
    """A text as the only part of a message's content."""
    return [{"type": "text", "text": text}]


_BEST, _WORST = (1, 1, 1, 1), (0, 0, 0, 0)


def _score(render: Render, empty: Mapping[str, Any], as_json: bool) -> tuple[int, ...]:
    call = {
        "id": "probe0001",
        "type": "function",
        "function": {"name": "probe", "arguments": {"town": _TOWN}},
    }
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", **empty, "tool_calls": [_with_json(call) if as_json else call]},
        {"role": "tool", "content": _SKY, "name": "probe", "tool_call_id": "probe0001"},
    ]
    try:
        text = render(messages, [_TOOL])
    except TemplateError:
        return _WORST
    unquoted = '\\"town' not in text  # JSON that was encoded once more
    return (1, int("None" not in text), int(_TOWN in text and unquoted), int(_SKY in text))


def _with_json(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def as_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each text as a list of one part."""
    return [
        {**message, "content": parts_of(message["content"])}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]
