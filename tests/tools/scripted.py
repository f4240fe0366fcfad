"""A model that says what a script says, in the events of a real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec

from headrace.chat.tool_formats.events import Arguments, CallEnd, CallStart, Text
from headrace.engine.request import Timing, Usage
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
)
from headrace.inference.handler import Batch
from headrace.inference.requests import ChatRequest
from headrace.sampling.params import SamplingParams

Said = str | Sequence[tuple[str, dict[str, Any]]]
"""A text, or calls of tools."""


class ScriptedModel:
    """`script` gives what is said to a request; an answer has a token per character of its text, or ten for
    each call, and a prompt one per message."""

    def __init__(self, script: Callable[[ChatRequest], Said]) -> None:
        self._script = script
        self.requests: list[ChatRequest] = []

    def handle(self, request: Any, call: CallContext) -> AsyncGenerator[Batch]:
        return self._events(request)

    async def _events(self, request: ChatRequest) -> AsyncGenerator[Batch]:
        prompt = PreparedPrompt(tuple(range(len(request.messages))), "")
        most = request.sampling.get("max_tokens")
        yield [Prepared("scripted", (prompt,), SamplingParams(max_tokens=most))]
        self.requests.append(request)
        yield [Started()]
        said = self._script(request)
        cut = False
        if isinstance(said, str):
            cut = most is not None and len(said) > most
            said = said[:most]
            yield [OutputDelta(0, (Text(said),))]
            tokens = len(said)
        else:
            tokens = 10 * len(said)
            for index, (name, arguments) in enumerate(said):
                text = msgspec.json.encode(arguments).decode()
                parts = (CallStart(index, f"random{index}", name), Arguments(index, text), CallEnd(index))
                yield [OutputDelta(0, parts)]
        reason = "tool_calls" if not isinstance(said, str) else "length" if cut else "stop"
        usage = Usage(len(request.messages), tokens, 0)
        yield [
            OutputFinished(0, (), reason, "length" if cut else "stop"),
            PromptFinished(0, usage, Timing(0.0, 0.0, 0.0), 7),
        ]
