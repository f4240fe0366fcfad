"""Tokens of a prompt, counted by the provider, which costs nothing."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from headrace.inference.requests import ChatRequest
from headrace.providers.dialect import Outgoing
from headrace.providers.failure import AttemptFailed, Failure, TargetRefused
from headrace.providers.remote_attempt import Sending
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import MAX_TOKENS
from headrace.struct_types import thread_safe

_ANTHROPIC = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking"})
_COUNTING = frozenset({"anthropic", "google"})


class _AnthropicCount(Struct):
    input_tokens: int


class _GoogleCount(Struct):
    total_tokens: int = msgspec.field(name="totalTokens")


async def count_tokens(request: ChatRequest, sending: Sending) -> int:
    """The tokens of the prompt of a request that the target can honor. Raises AttemptFailed."""
    target = sending.target
    body: dict[str, Any] = msgspec.json.decode(sending.dialect.outgoing(request, target, sending.warn).body)
    if target.provider.dialect == "anthropic":
        counted = {name: value for name, value in body.items() if name in _ANTHROPIC}
        outgoing = Outgoing("/messages/count_tokens", msgspec.json.encode(counted))
    else:
        model = target.model.removeprefix("models/")
        whole = {"generateContentRequest": {"model": f"models/{model}", **body}}
        outgoing = Outgoing(f"/models/{quote(model, safe='')}:countTokens", msgspec.json.encode(whole))
    raw = await (await sending.send(outgoing)).whole()
    try:
        if target.provider.dialect == "anthropic":
            found = msgspec.json.decode(raw, type=thread_safe(_AnthropicCount)).input_tokens
        else:
            found = msgspec.json.decode(raw, type=thread_safe(_GoogleCount)).total_tokens
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = -1
    if not 0 <= found <= MAX_TOKENS:
        message = "sent no count of tokens that can be right"
        raise AttemptFailed(Failure(phase="stream", kind="malformed", message=message))
    return found


def check_counts(target: RemoteTarget) -> None:
    """TargetRefused where a target's API has no count of tokens."""
    if target.provider.dialect not in _COUNTING:
        raise TargetRefused(
            f"the target {target.name!r} ({target.provider.name}) cannot count tokens: Anthropic's and "
            "Google's APIs can, and models of this machine",
            param="model",
        )
