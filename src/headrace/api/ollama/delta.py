"""An answer in Ollama's terms as it arrives: text, thinking, whole calls."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct, field

from headrace.api.ollama.schema import OllamaCall, OllamaFunction
from headrace.api.openai.schema import ContentLogprob
from headrace.chat.tool_formats.events import (
    AnswerEvent,
    Arguments,
    CallEnd,
    CallFailed,
    CallStart,
    Reasoning,
    Text,
)


class OllamaDelta(Struct):
    """What some events add to an answer."""

    text: str = ""
    thinking: str = ""
    calls: list[OllamaCall] = field(default_factory=list[OllamaCall])
    logprobs: list[ContentLogprob] = field(default_factory=list[ContentLogprob])

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls or self.logprobs)

    def add(self, more: OllamaDelta) -> None:
        """Take what comes next into this part."""
        self.text += more.text
        self.thinking += more.thinking
        self.calls += more.calls
        self.logprobs += more.logprobs


class PartReader:
    """Reads the parts of an answer. A call is shown when it is complete."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[CallStart, list[str]]] = {}

    @property
    def cut_calls(self) -> list[str]:
        """Functions whose calls have begun and not ended."""
        return [start.name for start, _ in self._begun.values()]

    def read(self, parts: Sequence[AnswerEvent]) -> OllamaDelta:
        """What more parts add."""
        part = OllamaDelta()
        for event in parts:
            match event:
                case Text(text):
                    part.text += text
                case Reasoning(text):
                    part.thinking += text
                case CallStart(index):
                    self._begun[index] = event, []
                case Arguments(index, text):
                    self._begun[index][1].append(text)
                case CallFailed(index):
                    del self._begun[index]
                case CallEnd(index):
                    start, written = self._begun.pop(index)
                    arguments = msgspec.json.decode("".join(written), type=dict[str, object])
                    part.calls.append(OllamaCall(OllamaFunction(start.name, arguments), start.id))
        return part
