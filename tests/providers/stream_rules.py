"""What a stream of each surface must look like, whatever happened behind it; its text, and its error."""

from __future__ import annotations

import json
from typing import Any

Seen = tuple[str, Any]
"""The text of an answer (or of its call's argument), and the error that ended it, None where none did."""


def sse(data: bytes) -> list[tuple[str, Any]]:
    """The events of a stream: names and JSON, or the text [DONE]."""
    text = data.decode()
    assert text.endswith("\n\n"), text[-200:]
    found: list[tuple[str, Any]] = []
    for block in text[:-2].split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        body = lines["data"]
        found.append((lines.get("event", ""), body if body == "[DONE]" else json.loads(body)))
    return found


def openai_chat(data: bytes) -> Seen:
    bodies = [body for _, body in sse(data)]
    *chunks, last = bodies
    assert all(body != "[DONE]" for body in chunks)
    error = None if last == "[DONE]" else last["error"]
    chunks = chunks if error is None else bodies[:-1]
    assert all("error" not in body for body in chunks)
    choices = [body["choices"][0] for body in chunks if body["choices"]]
    assert [c["delta"].get("role") for c in choices].count("assistant") == 1
    assert choices[0]["delta"].get("role") == "assistant"
    ends = [c["finish_reason"] for c in choices if c["finish_reason"]]
    assert len(ends) == (1 if error is None else 0), ends
    assert error is not None or choices[-1]["finish_reason"]
    text = "".join(c["delta"].get("content") or "" for c in choices)
    calls = [call for c in choices for call in c["delta"].get("tool_calls") or ()]
    assert len([call for call in calls if call.get("id")]) <= 1
    arguments = "".join(call["function"].get("arguments") or "" for call in calls)
    if error is None and calls:
        arguments = json.loads(arguments)["text"]
    return text + arguments, error


def anthropic(data: bytes) -> Seen:
    events = sse(data)
    names = [name for name, _ in events]
    assert names[0] == "message_start" and names.count("message_start") == 1
    error = events[-1][1]["error"] if names[-1] == "error" else None
    assert names.count("error") == (error is not None)
    assert names.count("message_stop") == names.count("message_delta") == (error is None)
    assert error is not None or names[-2:] == ["message_delta", "message_stop"]
    text, arguments, opened, index = "", "", False, -1
    for name, body in events:
        assert body["type"] == name
        if name == "content_block_start":
            assert not opened and body["index"] == index + 1
            opened, index = True, body["index"]
        elif name == "content_block_delta":
            assert opened and body["index"] == index
            text += body["delta"].get("text", "")
            arguments += body["delta"].get("partial_json", "")
        elif name == "content_block_stop":
            assert opened and body["index"] == index
            opened = False
    assert error is not None or not opened
    if error is None and arguments:
        arguments = json.loads(arguments)["text"]
    return text + arguments, error


def responses(data: bytes) -> Seen:
    events = [body for _, body in sse(data)]
    assert [body["sequence_number"] for body in events] == list(range(len(events)))
    kinds = [body["type"] for body in events]
    ends = [
        kind for kind in kinds if kind in ("response.completed", "response.incomplete", "response.failed")
    ]
    assert len(ends) == 1 and kinds[-1] == ends[0] and kinds.count("response.created") == 1
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")
    text = "".join(body["delta"] for body in events if body["type"] == "response.output_text.delta")
    arguments = "".join(
        body["delta"] for body in events if body["type"] == "response.function_call_arguments.delta"
    )
    error = events[-1]["response"]["error"] if ends[0] == "response.failed" else None
    if error is None and arguments:
        arguments = json.loads(arguments)["text"]
    return text + arguments, error


def ollama(data: bytes) -> Seen:
    lines = [json.loads(line) for line in data.decode().splitlines()]
    error = lines[-1].get("error")
    assert all("error" not in line for line in lines[:-1])
    assert [bool(line.get("done")) for line in lines] == [False] * (len(lines) - 1) + [error is None]
    messages = [line["message"] for line in lines if "message" in line]
    text = "".join(message["content"] for message in messages)
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    assert len(calls) <= 1
    return text + "".join(call["function"]["arguments"]["text"] for call in calls), error
