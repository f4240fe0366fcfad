"""What `LLM` and `AsyncLLM` return: completions, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from msgspec import Struct

from headrace.chat.messages import ToolCall
from headrace.chat.tool_formats.events import AnswerEvent, Reasoning, Text
from headrace.engine.request import Selection, Timing, Usage
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    GuardVerdict,
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    ParameterWarning,
    Prepared,
    TokenText,
)
from headrace.inference.explanation import explanation
from headrace.inference.result import ChoiceResult, PromptResult, ResultCollector
from headrace.telemetry.explain_node import ExplainNode


class Choice(Struct, frozen=True):
    """One finished choice. Reasoning and tool calls of a chat are no part of its text."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stop: str | int | None = None
    logprobs: tuple[TokenText, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    score: float | None = None  # of beam search, or of `best_by`


class Completion(Struct, frozen=True):
    """The answer to one prompt; `text`, `tokens`, `finish_reason`, `reasoning` and `tool_calls` are those of
    the first choice. With `vote`, `best_by` or `max_total_tokens` the choices are in the order of the
    `selection`, the winner first. `prompt_logprobs` has all tokens of the prompt but the first. `warnings`
    name what was accepted and has no effect, or another one than usual; `guards` are the verdicts of guards.
    `explain` says where its time went, where that was asked for.
    """

    choices: tuple[Choice, ...]
    usage: Usage
    timing: Timing
    seed: int
    prompt_logprobs: tuple[TokenText, ...] = ()
    selection: Selection | None = None
    warnings: tuple[ParameterWarning, ...] = ()
    guards: tuple[GuardVerdict, ...] = ()
    explain: ExplainNode | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls


class CompletionChunk(Struct, frozen=True):
    """Part of a stream: new text of a choice, or new reasoning of a chat. The last chunk of a stream has
    `completion`, with all tool calls."""

    text: str
    choice: int = 0
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None
    reasoning: str = ""


class ChunkReader:
    """Turns the events of a request with one prompt into chunks; the last one has the completion, with the
    `warnings` and `guards` that there are by then."""

    def __init__(self, prepared: Prepared, call: CallContext) -> None:
        self._collector, self._call = ResultCollector(1, prepared.choices), call

    def read(self, events: Sequence[InferenceEvent]) -> list[CompletionChunk]:
        """The chunks of a batch of events."""
        self._collector.add(events)
        return [
            _chunk(event.choice, event.parts, event.tokens if isinstance(event, OutputDelta) else ())
            for event in events
            if isinstance(event, OutputDelta) or (isinstance(event, OutputFinished) and event.parts)
        ]

    def last(self) -> CompletionChunk:
        """The chunk at the end of the stream."""
        [result] = self._collector.prompts
        return CompletionChunk("", completion=_completion(result, self._call))


def _chunk(choice: int, parts: Sequence[AnswerEvent], tokens: tuple[int, ...]) -> CompletionChunk:
    text = "".join(part.text for part in parts if isinstance(part, Text))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return CompletionChunk(text, choice, tokens, reasoning=reasoning)


def _completion(result: PromptResult, call: CallContext) -> Completion:
    selection, ended = result.selection, result.ended
    scores = dict(enumerate(selection.scores)) if selection is not None else {}
    choices = tuple(_choice(one, scores.get(result.choices.index(one))) for one in result.ranked())
    prompt_logprobs = () if result.scores is None else result.scores[1:]
    assert ended.seed is not None  # models of this process draw one
    return Completion(
        choices,
        ended.usage,
        ended.timing,
        ended.seed,
        prompt_logprobs,
        selection,
        tuple(call.warnings),
        tuple(call.verdicts),
        explanation(call) if call.explain else None,
    )


def _choice(result: ChoiceResult, score: float | None) -> Choice:
    output, ended = result.output, result.ended
    return Choice(
        output.content,
        tuple(result.tokens),
        ended.reason,
        ended.stop,
        tuple(result.logprobs),
        output.reasoning,
        output.calls,
        ended.score if score is None else score,
    )


def last_of(chunks: Iterator[CompletionChunk]) -> Completion:
    """What a stream ends with."""
    completion = None
    for chunk in chunks:
        completion = chunk.completion
    assert completion is not None  # a stream ends with a completion or raises
    return completion


async def last_async(chunks: AsyncIterator[CompletionChunk]) -> Completion:
    """What a stream ends with."""
    completion = None
    async for chunk in chunks:
        completion = chunk.completion
    assert completion is not None
    return completion
