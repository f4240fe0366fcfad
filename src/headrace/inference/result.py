"""The whole output of a request: choices and counts, collected from its events."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.chat.output_parser import ParsedOutput
from headrace.chat.tool_formats.events import AnswerEvent
from headrace.engine.request import Embedding, Selection, Usage
from headrace.inference.events import (
    ChoicesRanked,
    InferenceEvent,
    InputEmbedded,
    OutputDelta,
    OutputFinished,
    PromptContinued,
    PromptFinished,
    PromptScored,
    TokenText,
)
from headrace.inference.handler import OpenStream


class ChoiceResult:
    """One choice while it is collected, and when it is whole. `parts` are its parts in order."""

    __slots__ = ("finished", "logprobs", "parts", "tokens")

    def __init__(self) -> None:
        self.parts: list[AnswerEvent] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenText] = []
        self.finished: OutputFinished | None = None

    def add(self, event: OutputDelta | OutputFinished) -> None:
        """Take an event of this choice."""
        self.parts += event.parts
        if isinstance(event, OutputFinished):
            self.finished = event
        else:
            self.tokens += event.tokens
            self.logprobs += event.logprobs

    @property
    def output(self) -> ParsedOutput:
        """Text, reasoning and calls so far, each as a whole."""
        output = ParsedOutput()
        output.take(self.parts)
        return output

    @property
    def ended(self) -> OutputFinished:
        """How it ended."""
        assert self.finished is not None
        return self.finished


class PromptResult(Struct):
    """The choices of a prompt in the order of the engine; `ranked` in the order of a vote or ranking."""

    choices: list[ChoiceResult]
    scores: tuple[TokenText, ...] | None = None
    selection: Selection | None = None
    finished: PromptFinished | None = None
    embedding: Embedding | None = None
    continuations: tuple[float, ...] = ()

    @property
    def ended(self) -> PromptFinished:
        """Its counts."""
        assert self.finished is not None
        return self.finished

    def ranked(self, keep: int | None = None) -> list[ChoiceResult]:
        """The first `keep` choices (None: all), best first where there was a vote or ranking."""
        if self.selection is None or (keep is not None and keep >= len(self.choices)):
            return self.choices[:keep]
        return [self.choices[place] for place in self.selection.order[:keep]]


class ResultCollector:
    """Collects the events of a request of `prompts` prompts with `choices` choices each."""

    def __init__(self, prompts: int, choices: int) -> None:
        self._per_prompt = choices
        self.prompts = [PromptResult([ChoiceResult() for _ in range(choices)]) for _ in range(prompts)]

    @property
    def usages(self) -> list[Usage]:
        """Token counts of the prompts."""
        return [prompt.ended.usage for prompt in self.prompts]

    def add(self, events: Sequence[InferenceEvent]) -> None:
        """Take events, in order."""
        for event in events:
            if isinstance(event, OutputDelta | OutputFinished):
                prompt, choice = divmod(event.choice, self._per_prompt)
                self.prompts[prompt].choices[choice].add(event)
            elif isinstance(event, PromptFinished):
                self.prompts[event.prompt].finished = event
            elif isinstance(event, PromptScored):
                self.prompts[event.prompt].scores = event.tokens
            elif isinstance(event, ChoicesRanked):
                self.prompts[event.prompt].selection = event.selection
            elif isinstance(event, InputEmbedded):
                self.prompts[event.input].embedding = event.embedding
            elif isinstance(event, PromptContinued):
                self.prompts[event.prompt].continuations = event.logprobs


async def collect(stream: OpenStream) -> ResultCollector:
    """Read a stream to its end. Raises the error that ended it."""
    collector = ResultCollector(len(stream.prepared.prompts), stream.prepared.choices)
    try:
        async for batch in stream:
            collector.add(batch)
    finally:
        await stream.aclose()
    return collector
