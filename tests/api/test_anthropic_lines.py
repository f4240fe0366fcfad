"""A message without HTTP, as a line of a batch runs it, over a handler that computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.api.anthropic.messages import complete_message
from headrace.api.http.call_context import HttpCall
from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)
from headrace.engine.request import Timing, Usage
from headrace.errors import InvalidRequest
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
)
from headrace.inference.handler import EventBatches, open_stream
from headrace.inference.requests import ChatRequest, InferenceRequest
from headrace.sampling.params import SamplingParams
from headrace.storage.keys import KeyLimits

BODY: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}


class Scripted:
    """Answers every request with the same parts, one delta for each."""

    def __init__(self, parts: Sequence[AnswerEvent] = (Text("Good day."),), **ended: Any) -> None:
        self.parts = parts
        self.ended = OutputFinished(0, (), "stop", "stop", reasoning_tokens=2)
        self.ended = msgspec.structs.replace(self.ended, **ended)
        self.params = SamplingParams(max_tokens=9)
        self.requests: list[InferenceRequest] = []

    async def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        self.requests.append(request)
        yield [Prepared("scripted", (PreparedPrompt((1, 2, 3), ""),), self.params)]
        yield [Started()]
        yield [OutputDelta(0, (part,), (7,)) for part in self.parts]
        yield [self.ended, PromptFinished(0, Usage(3, 5, 1), Timing(0, 0, 0), 7)]

    def message(self, **body: Any) -> dict[str, Any]:
        """The reply to a body, as JSON."""
        call = HttpCall(
            request_id="req_1", account=Account("", KeyLimits()), method="POST", path="/v1/messages"
        )
        service: Any = SimpleNamespace(open=lambda request, call: open_stream(self, request, call))
        reply = asyncio.run(complete_message(msgspec.json.encode(BODY | body), call, service))
        return msgspec.json.decode(msgspec.json.encode(reply))


def test_a_body_becomes_a_request() -> None:
    handler = Scripted()
    handler.message(
        model="m",
        temperature=0.5,
        stop_sequences=["a"],
        thinking={"type": "enabled", "budget_tokens": 5},
        output_config={"effort": "medium"},
    )
    [request] = handler.requests
    assert isinstance(request, ChatRequest) and request.id.startswith("msg_")
    assert (request.model, request.fit_context, request.continue_final_message) == ("m", True, False)
    assert request.sampling == {"temperature": 0.5, "max_tokens": 9, "stop": ("a",)}
    reasoning = request.reasoning
    assert (reasoning.enabled, reasoning.effort, reasoning.max_tokens) == (True, "medium", 5)
    assert not reasoning.required


def test_blocks_keep_their_order() -> None:
    parts = [
        *(Reasoning("h"), Reasoning("m"), Text("One "), CallStart(0, "c0", "time"), Arguments(0, "{}")),
        *(CallEnd(0), Text("two"), CallStart(1, "c1", "time"), CallFailed(1), Text(" three")),
    ]
    reply = Scripted(parts, reason="tool_calls").message(metadata={"user_id": "u"})
    kinds = [(block["type"], block.get("text", block.get("thinking"))) for block in reply["content"]]
    assert kinds == [("thinking", "hm"), ("text", "One "), ("tool_use", None), ("text", "two three")]
    assert (reply["model"], reply["stop_reason"]) == ("scripted", "tool_use")
    usage = reply["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (2, 1, 5)
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}
    assert [warning["param"] for warning in reply["warnings"]] == ["metadata"]


def test_a_full_context_differs_from_max_tokens() -> None:
    handler = Scripted(reason="length")
    assert handler.message()["stop_reason"] == "max_tokens"
    handler.params = SamplingParams(max_tokens=None)
    assert handler.message()["stop_reason"] == "model_context_window_exceeded"


def test_what_is_refused_reaches_no_handler() -> None:
    handler = Scripted()
    with pytest.raises(InvalidRequest, match=r"budget_tokens \(9\) must be smaller than max_tokens \(9\)"):
        handler.message(thinking={"type": "enabled", "budget_tokens": 9})
    assert handler.requests == []
