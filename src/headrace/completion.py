"""What the Python front door gives back: completions, pieces of them, and how they come from events."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headrace.chat.messages import ToolCall
from headrace.chat.output_parser import ParsedOutput
from headrace.chat.prompt import ChatPrompt
from headrace.chat.tool_formats.events import AnswerEvent, Reasoning, Text
from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    Embedding,
    EngineEvent,
    PromptLogprobs,
    RequestFailed,
    RequestFinished,
    Selection,
    Timing,
    TokenLogprob,
    Usage,
)


class Choice(Struct, frozen=True):
    """One finished choice."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    score: float | None = None  # of beam search, or what `best_by` says


class Completion(Struct, frozen=True):
    """The answer to one prompt; `text`, `tokens`, `finish_reason`, `reasoning` and `tool_calls` are the first
    choice's. Reasoning and calls of a chat are no part of its text. With `vote`, `best_by` or
    `max_total_tokens` the choices come in the order of the `verdict`, the winner first."""

    choices: tuple[Choice, ...]
    usage: Usage
    timing: Timing
    seed: int
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # of all tokens of the prompt but the first
    verdict: Selection | None = None

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
    """A piece of a stream: new text of a choice, or new reasoning of a chat; the last one of the stream has
    `completion`, with all tool calls."""

    text: str
    choice: int = 0
    tokens: tuple[int, ...] = ()
    completion: Completion | None = None
    reasoning: str = ""


class CompletionCollector:
    """Gathers the events of one request into pieces and, at the end, a completion."""

    def __init__(self, n: int, conversation: ChatPrompt | None) -> None:
        self.completion: Completion | None = None
        parsed = None if conversation is None or conversation.plain else conversation
        self._parsers = [None if parsed is None else parsed.parser() for _ in range(n)]
        self._answers = [ParsedOutput() for _ in range(n)]
        self._tokens: list[list[int]] = [[] for _ in range(n)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(n)]
        self._ends: dict[int, ChoiceFinished] = {}
        self._prompt: tuple[TokenLogprob, ...] = ()
        self._verdict: Selection | None = None

    def take(self, events: list[EngineEvent]) -> list[CompletionChunk]:
        """The pieces of these events; raises the request's error if it failed."""
        pieces: list[CompletionChunk] = []
        for event in events:
            match event:
                case PromptLogprobs(logprobs):
                    self._prompt = logprobs
                case Delta(choice, text, tokens, logprobs):
                    parser = self._parsers[choice]
                    self._tokens[choice] += tokens
                    self._logprobs[choice] += logprobs
                    said = [Text(text)] if parser is None else parser.feed(text)
                    pieces.append(self._piece(choice, said, tokens))
                case ChoiceFinished(choice, reason):
                    self._ends[choice] = event
                    parser = self._parsers[choice]
                    if parser is not None:
                        pieces.append(self._piece(choice, parser.finish(cut=reason != "stop")))
                case Selection():
                    self._verdict = event
                case Embedding():
                    pass  # an encoder's, which completes nothing
                case RequestFinished():
                    self.completion = self._complete(event)
                    pieces.append(CompletionChunk("", completion=self.completion))
                case RequestFailed(error):
                    raise error
        return pieces

    def _piece(
        self, choice: int, said: Sequence[AnswerEvent], tokens: tuple[int, ...] = ()
    ) -> CompletionChunk:
        self._answers[choice].take(said)
        text = "".join(event.text for event in said if isinstance(event, Text))
        reasoning = "".join(event.text for event in said if isinstance(event, Reasoning))
        return CompletionChunk(text, choice, tokens, reasoning=reasoning)

    def _complete(self, done: RequestFinished) -> Completion:
        verdict = self._verdict
        order = sorted(self._ends) if verdict is None else verdict.order
        scores = dict(enumerate(verdict.scores)) if verdict is not None else {}
        ends = [(index, self._ends[index]) for index in order]
        choices = tuple(
            Choice(
                self._answers[index].content,
                tuple(self._tokens[index]),
                self._answers[index].reason(end.reason),
                end.stop,
                tuple(self._logprobs[index]),
                self._answers[index].reasoning,
                self._answers[index].calls,
                scores.get(index, end.score),
            )
            for index, end in ends
        )
        return Completion(choices, done.usage, done.timing, done.seed, self._prompt, verdict)
