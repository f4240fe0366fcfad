"""A provider of four APIs that bills all that it is allowed to: every byte of the input as a token, and every
token of output that its limit leaves. Its streams are built from the SDKs' own types."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

from anthropic.types import (
    Message,
    MessageDeltaUsage,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    RawMessageStopEvent,
    Usage,
)
from fake_provider import Exchange, FakeProvider
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk
from openai.types.completion_usage import CompletionTokensDetails
from openai.types.responses import ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

PROVIDERS = {
    "chat": {"kind": "openai"},
    "compatible": {"dialect": "openai_chat"},
    "responses": {"kind": "openai_responses"},
    "claude": {"kind": "anthropic"},
    "gemini": {"kind": "google"},
    "grok": {"kind": "xai"},
}
PRICES: dict[str, Any] = {
    "chat/*": {"input": 0.15, "output": 0.6, "cache_read": 0.07},
    "compatible/*": {"input": 0.1, "output": 0.3},
    "responses/*": {"input": 1.25, "output": 10},
    "claude/*": {"input": 3, "cache_read": 0.3, "cache_write": 3.75, "cache_write_1h": 6, "output": 15},
    "gemini/*": {"input": 0.3, "output": 2.5, "tiers": [{"above": 2_000, "input": 0.6, "output": 5}]},
    "grok/*": {"input": 0.2, "output": 0.5, "request": 0.001},
}
IMAGE_TOKENS = {"claude": 4_784, "gemini": 2_240}
BEYOND = {"gemini": 32_768, "grok": 131_072}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and not value.startswith("data:") and len(value) < 100_000:
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            if key != "data":
                yield key
                yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def read_tokens(body: dict[str, Any], images: int) -> int:
    """Every byte of every text is a token, and a template writes something around it."""
    parts = [body.get(name) for name in ("messages", "input", "contents", "system", "systemInstruction")]
    tools = [body["tools"]] if "tools" in body else []
    pieces = sum(len(part) if isinstance(part, list) else 1 for part in (*parts, *tools) if part)
    size = sum(len(text.encode()) for text in _texts([*parts, *tools]))
    shown = json.dumps(body).count("aGk=")
    return size + 16 * pieces + 500 + shown * images


def limit_of(body: dict[str, Any]) -> tuple[int, int]:
    """The limit of a choice, and how many choices; KeyError where none was sent."""
    if "contents" in body:
        config = body["generationConfig"]
        return config["maxOutputTokens"], config.get("candidateCount", 1)
    names = ("max_completion_tokens", "max_output_tokens", "max_tokens")
    return next(body[name] for name in names if name in body), body.get("n", 1)


def dumped(*bodies: Any) -> bytes:
    found: list[str] = []
    for one in bodies:
        body = one if isinstance(one, dict) else one.model_dump(mode="json", exclude_unset=True)
        name = f"event: {body['type']}\n" if "type" in body else ""
        found.append(f"{name}data: {json.dumps(body)}\n\n")
    return "".join(found).encode()


def chat_stream(given: int, output: int, thought: int, choices: int, *, beside: bool) -> bytes:
    """`beside`: reasoning is no part of the completion's tokens."""
    completion = output if beside else output + thought
    usage = CompletionUsage(
        prompt_tokens=given,
        completion_tokens=completion,
        total_tokens=given + output + thought,
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=thought),
    )
    head: dict[str, Any] = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    chunks = [
        ChatCompletionChunk.model_validate(
            head | {"choices": [{"index": at, "delta": {"content": "Hi"}, "finish_reason": "length"}]}
        )
        for at in range(choices)
    ]
    return dumped(*chunks, ChatCompletionChunk(choices=[], usage=usage, **head))


def claude_stream(given: int, output: int) -> bytes:
    usage = Usage(input_tokens=0, output_tokens=1, cache_creation_input_tokens=given)
    kept = {"ephemeral_1h_input_tokens": given, "ephemeral_5m_input_tokens": 0}
    usage = Usage.model_validate(usage.model_dump(exclude_unset=True) | {"cache_creation": kept})
    message = Message.model_validate(
        {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
        | {"stop_reason": None, "stop_sequence": None}
    )
    return dumped(
        RawMessageStartEvent(type="message_start", message=message),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        RawMessageDeltaEvent.model_validate(
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None}}
            | {"usage": MessageDeltaUsage(output_tokens=output).model_dump(exclude_unset=True)}
        ),
        RawMessageStopEvent(type="message_stop"),
    )


def responses_stream(given: int, output: int, thought: int) -> bytes:
    usage = ResponseUsage(
        input_tokens=given,
        output_tokens=output + thought,
        total_tokens=given + output + thought,
        input_tokens_details=InputTokensDetails.model_construct(cached_tokens=0),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=thought),
    ).model_dump(mode="json", exclude_unset=True)
    item = {"type": "message", "id": "i", "role": "assistant", "content": [], "status": "in_progress"}
    done = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "usage": usage}
    return dumped(
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "delta": "Hi"},
        {"type": "response.incomplete", "response": done},
    )


def gemini_stream(given: int, output: int, thought: int, choices: int) -> bytes:
    usage = {"promptTokenCount": given, "candidatesTokenCount": output, "thoughtsTokenCount": thought}
    usage["totalTokenCount"] = given + output + thought
    parts = {"role": "model", "parts": [{"text": "Hi"}]}
    candidates = [{"index": at, "content": parts, "finishReason": "MAX_TOKENS"} for at in range(choices)]
    return dumped({"candidates": candidates, "usageMetadata": usage})


class GreedyProvider(FakeProvider):
    """`counts` are what it billed: provider, input, output. Some of its replies break off."""

    def __init__(self, seed: int, faults: float = 0.1) -> None:
        super().__init__([self._reply])
        self.counts: list[tuple[str, int, int]] = []
        self._dice, self._faults = random.Random(seed), faults

    async def _reply(self, exchange: Exchange) -> None:
        await asyncio.sleep(self._dice.random() * 0.02)
        name, body = exchange.path.split("/")[1], exchange.body
        limit, choices = limit_of(body)
        given = read_tokens(body, IMAGE_TOKENS.get(name, 48_169))
        thought = self._dice.randint(0, BEYOND.get(name, limit - 1 if limit > 1 else 0)) * choices
        output = limit * choices - (0 if name in BEYOND else thought)
        if name == "claude":
            output, thought = limit, 0
        luck = self._dice.random()
        if luck < self._faults / 2:
            await exchange.begin(500, content_type="application/json")
            await exchange.send(b"{}")
            return
        self.counts.append((name, given, output + thought))
        if luck < self._faults:
            exchange.abort()
            return
        await exchange.begin()
        await exchange.send(self._stream(name, given, output, thought, choices))

    def _stream(self, name: str, given: int, output: int, thought: int, choices: int) -> bytes:
        if name == "claude":
            return claude_stream(given, output)
        if name == "gemini":
            return gemini_stream(given, output, thought, choices)
        if name == "responses":
            return responses_stream(given, output, thought)
        return chat_stream(given, output, thought, choices, beside=name == "grok")
