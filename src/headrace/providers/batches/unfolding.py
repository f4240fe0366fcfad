"""Whole replies as the streams that they would have been, so that each API has one reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

from headrace.providers.answer import MalformedAnswer
from headrace.providers.sse import SseEvent

Json = dict[str, Any]


def unfolded(path: str, body: bytes) -> list[SseEvent]:
    """The events of a reply to a request with this path. Raises MalformedAnswer or msgspec.DecodeError."""
    reply = msgspec.json.decode(body)
    if not isinstance(reply, dict):
        raise MalformedAnswer("replied with JSON that is no object")
    make = _FORMS.get(path)
    if make is None:
        raise MalformedAnswer(f"replied to {path}, which is no request of a batch")
    return [_event(one) for one in make(cast(Json, reply))]


def _event(body: Json | bytes) -> SseEvent:
    return SseEvent("", body if isinstance(body, bytes) else msgspec.json.encode(body))


def _chat(reply: Json) -> Iterator[Json | bytes]:
    """A reply of chat completions or completions: what is a message there is a delta."""
    choices = [_choice(one) for one in _objects(reply.get("choices"))]
    yield {**reply, "choices": choices}
    yield b"[DONE]"


def _choice(choice: Json) -> Json:
    message = _object(choice.get("message"))
    return {**choice, "delta": message} if message else choice


def _message(reply: Json) -> Iterator[Json | bytes]:
    """A message of Anthropic: each block with all of it."""
    yield {"type": "message_start", "message": {"usage": reply.get("usage")}}
    for index, block in enumerate(_objects(reply.get("content"))):
        signature = block.get("signature")
        yield {"type": "content_block_start", "index": index, "content_block": block}
        if signature:
            delta = {"type": "signature_delta", "signature": signature}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ends = {name: reply.get(name) for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ends, "usage": reply.get("usage")}
    yield {"type": "message_stop"}


def _response(reply: Json) -> Iterator[Json | bytes]:
    """A response: its items one after the other."""
    for index, item in enumerate(_objects(reply.get("output"))):
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        for part in _objects(item.get("summary")):
            yield {"type": "response.reasoning_summary_text.delta", "delta": part.get("text") or ""}
        for part in _objects(item.get("content")):
            kind = _TEXTS.get(str(part.get("type")))
            if kind is not None:
                text = part.get("text") or part.get("refusal") or ""
                yield {"type": kind, "delta": text, "logprobs": part.get("logprobs") or None}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    status = str(reply.get("status"))
    ended = status if status in ("incomplete", "failed") else "completed"
    yield {"type": f"response.{ended}", "response": reply}


_TEXTS = {
    "output_text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "reasoning_text": "response.reasoning_text.delta",
}
_FORMS: Mapping[str, Callable[[Json], Iterator[Json | bytes]]] = {
    "/chat/completions": _chat,
    "/completions": _chat,
    "/messages": _message,
    "/responses": _response,
}


def _objects(value: object) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in cast("list[object]", value)):
        raise MalformedAnswer("replied with a list that has other members than objects")
    return cast("list[Json]", value)


def _object(value: object) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}
