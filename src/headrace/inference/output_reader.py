"""From engine events to inference events: text is parsed into parts, tokens get their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.chat.output_parser import OutputParser
from headrace.chat.tool_formats.events import AnswerEvent, CallEnd, Text
from headrace.engine.request import (
    ChoiceFinished,
    ContinuationsScored,
    Delta,
    Embedding,
    EngineEvent,
    PromptLogprobs,
    RequestFinished,
    Selection,
    TokenLogprob,
)
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
from headrace.tokenization.tokenizer import Tokenizer

NewParser = Callable[[], OutputParser | None]


class ChoiceReader:
    """Parses the text of one choice. Without a parser all of it is text.

    `reasoning_tokens` counts the tokens up to the one that ends the reasoning.
    """

    __slots__ = ("_called", "_parser", "reasoning_tokens")

    def __init__(self, parser: OutputParser | None) -> None:
        self._parser = parser
        self._called = False
        self.reasoning_tokens = 0

    def feed(self, text: str, tokens: int) -> Sequence[AnswerEvent]:
        """The parts that `tokens` tokens with that text complete."""
        parser = self._parser
        if parser is None:
            return (Text(text),) if text else ()
        was_reasoning = parser.thinking
        parts = parser.feed(text)
        if was_reasoning or parser.thinking:
            self.reasoning_tokens += tokens
        self._look(parts)
        return parts

    def finish(self, reason: str) -> tuple[Sequence[AnswerEvent], str]:
        """The last parts, and the reason: tool_calls where the model ended by itself after a call."""
        parts: Sequence[AnswerEvent] = ()
        if self._parser is not None:
            parts = self._parser.finish(cut=reason != "stop")
            self._look(parts)
        return parts, "tool_calls" if reason == "stop" and self._called else reason

    def _look(self, parts: Sequence[AnswerEvent]) -> None:
        self._called = self._called or any(isinstance(part, CallEnd) for part in parts)


class OutputReader:
    """Reads the events of the engine requests of one inference request, `choices` of each prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[tuple[int, ...]],
        choices: int,
        new_parser: NewParser,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._choices = choices
        self._readers = [ChoiceReader(new_parser()) for _ in range(len(prompts) * choices)]

    def read(self, index: int, events: Sequence[EngineEvent]) -> list[InferenceEvent]:
        """What the events of the request at `index` mean."""
        found: list[InferenceEvent] = []
        first = index * self._choices
        for event in events:
            if type(event) is Delta:
                choice = first + event.choice
                parts = self._readers[choice].feed(event.text, len(event.tokens))
                logprobs = self.texts(event.logprobs) if event.logprobs else ()
                found.append(OutputDelta(choice, parts, event.tokens, logprobs))
            elif isinstance(event, ChoiceFinished):
                found.append(self._finished(first + event.choice, event))
            elif isinstance(event, RequestFinished):
                found.append(PromptFinished(index, event.usage, event.timing, event.seed))
            elif isinstance(event, PromptLogprobs):
                found.append(PromptScored(index, self._scores(index, event)))
            elif isinstance(event, Selection):
                found.append(ChoicesRanked(index, event))
            elif isinstance(event, Embedding):
                found.append(InputEmbedded(index, event))
            elif isinstance(event, ContinuationsScored):
                found.append(PromptContinued(index, event.logprobs))
        return found

    def _finished(self, choice: int, event: ChoiceFinished) -> OutputFinished:
        reader = self._readers[choice]
        parts, reason = reader.finish(event.reason)
        return OutputFinished(
            choice, parts, reason, event.reason, event.stop, event.score, reader.reasoning_tokens
        )

    def _scores(self, index: int, event: PromptLogprobs) -> tuple[TokenText, ...]:
        first = self._text(self._prompts[index][0], math.nan, 0)
        return (first, *self.texts(event.logprobs))

    def texts(self, logprobs: Sequence[TokenLogprob]) -> tuple[TokenText, ...]:
        """Log probabilities with the bytes of their tokens."""
        return tuple(
            self._text(
                entry.token,
                entry.logprob,
                entry.rank,
                tuple(self._text(token, logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)),
            )
            for entry in logprobs
        )

    def _text(self, token: int, logprob: float, rank: int, top: tuple[TokenText, ...] = ()) -> TokenText:
        special = token in self._tokenizer.pieces.special_ids
        return TokenText(token, self._tokenizer.token_bytes(token), logprob, rank, top, special)
