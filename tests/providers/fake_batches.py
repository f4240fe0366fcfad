"""Providers' batches, made of the official SDKs' own types: what they accept is what the SDKs know."""

from __future__ import annotations

import email
import email.policy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from anthropic.types.messages import MessageBatch
from anthropic.types.messages.batch_create_params import Request as MessageRequest
from fake_provider import Exchange, events
from openai.types import Batch, FileObject
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter

Json = dict[str, Any]
Answer = Callable[[Json], Json]
"""What a line gets: a reply, or a dictionary with `status` and `body` for an error."""
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_requests = TypeAdapter(list[MessageRequest])


def completion(body: Json) -> Json:
    """The reply to a chat: its last message again."""
    message = {"role": "assistant", "content": f"far: {body['messages'][-1]['content']}", "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    reply = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": USAGE,
        "service_tier": "default",
    }
    return ChatCompletion.model_validate(reply, strict=True).model_dump(mode="json")


def message(body: Json) -> Json:
    """The reply to a message of Anthropic."""
    content = body["messages"][-1]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": f"far: {text}"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 3, "service_tier": "batch"},
    }


@dataclass
class FakeBatches:
    """A `Reply` of `fake_provider` that has batches of both kinds. `holds`: they do not end by themselves.
    `lost` counts down: so many replies to a creation are lost after it has happened."""

    answer: Answer = completion
    holds: bool = False
    lost: int = 0
    refuses: bool = False
    others: int = 0
    """Batches of others that were begun later, and come first in lists."""
    expires: int = 0
    """Lines of the next batches that expire."""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    batches: dict[str, Json] = field(default_factory=dict[str, Json])
    bodies: list[Json] = field(default_factory=list[Json])
    """Of all lines of all batches."""
    single: list[Json] = field(default_factory=list[Json])
    """Bodies of requests of their own."""
    cancelled: list[str] = field(default_factory=list[str])
    billed: int = 0
    """Lines that were answered."""

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.path.partition("?")[0].removeprefix("/v1")
        if path == "/chat/completions":
            self.single.append(exchange.body)
            text = completion(exchange.body)["choices"][0]["message"]["content"]
            delta = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
            await exchange.begin()
            await exchange.send(events({"choices": [delta], "usage": USAGE}))
            return
        is_creation = exchange.method == "POST" and path in ("/batches", "/messages/batches")
        if is_creation and self.refuses:
            key = exchange.headers.get("authorization")
            said = {"message": f"no batches with {key}", "type": "invalid_request_error"}
            await self._send(exchange, {"error": said}, 400)
            return
        found = self._found(exchange, path)
        if is_creation and self.lost:
            self.lost -= 1
            exchange.abort()
        elif isinstance(found, bytes):
            await exchange.begin(200, content_type="application/octet-stream")
            await exchange.send(found)
        else:
            await self._send(exchange, found, 200 if found is not None else 404)

    async def _send(self, exchange: Exchange, body: Json | None, status: int = 200) -> None:
        await exchange.begin(status, content_type="application/json")
        await exchange.send(json.dumps(body or {"error": {"message": "there is none"}}).encode())

    def _found(self, exchange: Exchange, path: str) -> Json | bytes | None:
        match [exchange.method, *path.strip("/").split("/")]:
            case ["POST", "files"]:
                return self._upload(exchange)
            case ["POST", "batches"]:
                return self._create(exchange.body)
            case ["GET", "batches" as kind] | ["GET", "messages", "batches" as kind]:
                assert kind
                return self._page(exchange.path.partition("?")[2])
            case ["GET", "batches", name]:
                return self._state(name)
            case ["POST", "batches", name, "cancel"] | ["POST", "messages", "batches", name, "cancel"]:
                self.cancelled.append(name)
                self._end(name, "cancelled")
                return self.batches[name]["shown"]
            case ["GET", "files", name, "content"]:
                return self.files[name]
            case ["POST", "messages", "batches"]:
                return self._create_messages(exchange.body)
            case ["GET", "messages", "batches", name]:
                return self._state(name)
            case ["GET", "messages", "batches", name, "results"]:
                return self.files[name]
            case _:
                return None

    def _page(self, query: str) -> Json:
        """A hundred batches, from the one after that which the query names."""
        given = dict(parse_qsl(query))
        others = [
            {"id": f"other_{at}", "input_file_id": "file-other", "created_at": int(time.time())}
            for at in range(self.others)
        ]
        found = [*others, *(one["shown"] for one in self.batches.values())]
        last = given.get("after") or given.get("after_id")
        start = 1 + [one["id"] for one in found].index(last) if last else 0
        end = start + int(given["limit"])
        return {"data": found[start:end], "has_more": end < len(found)}

    def _upload(self, exchange: Exchange) -> Json:
        head = f"content-type: {exchange.headers['content-type']}\r\n\r\n".encode()
        form = email.message_from_bytes(head + exchange.raw, policy=email.policy.HTTP)
        parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}
        assert parts["purpose"].get_payload().strip() == "batch"
        name = f"file-{len(self.files)}"
        self.files[name] = parts["file"].get_payload(decode=True).strip()
        shown = {
            "id": name,
            "bytes": len(self.files[name]),
            "created_at": int(time.time()),
            "filename": "in.jsonl",
            "object": "file",
            "purpose": "batch",
            "status": "processed",
        }
        return FileObject.model_validate(shown).model_dump(mode="json")

    def _create(self, body: Json) -> Json:
        lines = [json.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
        assert len({line["body"]["model"] for line in lines}) == 1, "a batch is for one model"
        assert {line["url"] for line in lines} == {body["endpoint"]} and body["completion_window"] == "24h"
        assert not any("stream" in line["body"] for line in lines)
        name = f"batch_{len(self.batches)}"
        shown = {
            "id": name,
            "object": "batch",
            "endpoint": body["endpoint"],
            "input_file_id": body["input_file_id"],
            "completion_window": "24h",
            "created_at": int(time.time()),
            "status": "in_progress",
            "metadata": body["metadata"],
        }
        shown = Batch.model_validate(shown).model_dump(mode="json")
        self.bodies += [line["body"] for line in lines]
        self.batches[name] = {"shown": shown, "lines": [(one["custom_id"], one["body"]) for one in lines]}
        return shown

    def _create_messages(self, body: Json) -> Json:
        requests = _requests.validate_python(body["requests"])
        assert not any(one["params"].get("stream") for one in body["requests"])
        name = f"msgbatch_{len(self.batches)}"
        counts = {"processing": len(requests), "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        shown = {
            "id": name,
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": counts,
            "created_at": "2100-01-01T00:00:00Z",
            "expires_at": "2100-01-02T00:00:00Z",
        }
        shown = MessageBatch.model_validate(shown).model_dump(mode="json")
        self.bodies += [one["params"] for one in body["requests"]]
        self.batches[name] = {
            "shown": shown,
            "lines": [(one["custom_id"], one["params"]) for one in body["requests"]],
        }
        return shown

    def _state(self, name: str) -> Json | None:
        if name not in self.batches:
            return None
        if not self.holds:
            self._end(name, "completed")
        return self.batches[name]["shown"]

    def _end(self, name: str, status: str) -> None:
        """Answer all lines; of a batch that is cancelled the first one."""
        batch = self.batches[name]
        if batch.get("ended"):
            return
        batch["ended"] = True
        shown, text, is_messages = batch["shown"], b"", name.startswith("msg")
        for at, (custom_id, body) in enumerate(batch["lines"]):
            is_left = status == "cancelled" and at > 0
            if not is_left and self.expires:
                self.expires, is_left = self.expires - 1, True
            line = (_messages_line if is_messages else _line)(
                custom_id, None if is_left else self.answer(body)
            )
            self.billed += not is_left
            text += json.dumps(line).encode() + b"\n"
        if is_messages:
            self.files[name] = text
            shown["processing_status"] = "ended"
        else:
            self.files[f"out-{name}"] = text
            shown |= {"status": status, "output_file_id": f"out-{name}"}


def _line(custom_id: str, found: Json | None) -> Json:
    if found is None:
        error = {"code": "batch_expired", "message": "it was not run"}
        return {"id": "x", "custom_id": custom_id, "response": None, "error": error}
    status, body = (found["status"], found["body"]) if "status" in found else (200, found)
    response = {"status_code": status, "request_id": "r", "body": body}
    return {"id": "x", "custom_id": custom_id, "response": response, "error": None}


def _messages_line(custom_id: str, found: Json | None) -> Json:
    if found is None:
        return {"custom_id": custom_id, "result": {"type": "canceled"}}
    if "status" in found:
        return {"custom_id": custom_id, "result": {"type": "errored", "error": found["body"]}}
    return {"custom_id": custom_id, "result": {"type": "succeeded", "message": found}}
