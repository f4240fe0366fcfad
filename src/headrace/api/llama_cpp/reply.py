"""From inference events to llama.cpp's replies, whole or as server-sent events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headrace.api.http.event_stream import MEDIA_TYPE, sse_event
from headrace.api.llama_cpp.body import GenerationBody
from headrace.api.llama_cpp.errors import llama_error_body
from headrace.api.llama_cpp.sampling import settings_of
from headrace.api.llama_cpp.schema import (
    LlamaChunk,
    LlamaCompletion,
    StopType,
    TokenProbability,
    TopToken,
)
from headrace.api.openai.responder import timings
from headrace.api.openai.schema import Timings
from headrace.chat.tool_formats.events import AnswerEvent, Text
from headrace.engine.request import Timing
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    Prepared,
    PromptFinished,
    TokenText,
)
from headrace.inference.result import ChoiceResult, ResultCollector
from headrace.sampling.params import MAX_INT

LOWEST_LOGPROB: Final = -1e30  # JSON has no infinity


class LlamaReply:
    """The format of a reply. `listed`: a list of prompts was sent, so a list of completions comes back."""

    def __init__(self, body: GenerationBody, eos_ids: Sequence[int], *, listed: bool) -> None:
        self.body = body
        self._eos_ids, self._listed = eos_ids, listed

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> Raw:
        """The reply that is not streamed."""
        found: list[Any] = []
        for prompt in result.prompts:
            for choice in prompt.choices:
                one = self.completion(len(found), prepared, choice, prompt.ended, call)
                found.append(_selected(one, self.body.response_fields))
        return Raw(msgspec.json.encode(found if self._listed or len(found) > 1 else found[0]))

    def stream(self, prepared: Prepared, call: CallContext) -> LlamaEvents:
        """The writer of a streamed reply."""
        return LlamaEvents(self, prepared, call)

    def completion(
        self, index: int, prepared: Prepared, choice: ChoiceResult, ended: PromptFinished, call: CallContext
    ) -> LlamaCompletion:
        """One completion with everything that is known of it."""
        usage, finished, params = ended.usage, choice.ended, prepared.params
        assert params is not None
        content, count = choice.output.content, len(choice.tokens)
        settings = settings_of(params, self._eos_ids) | {
            "seed": ended.seed,
            "stream": bool(self.body.stream),
            "grammar": self.body.grammar or "",
            "timings_per_token": bool(self.body.timings_per_token),
        }
        return LlamaCompletion(
            index=index,
            content=content,
            tokens=choice.tokens if self.body.return_tokens else [],
            model=prepared.model,
            tokens_predicted=count,
            tokens_evaluated=usage.prompt_tokens,
            generation_settings=settings,
            prompt=prepared.prompts[index // prepared.choices].text,
            has_new_line="\n" in content,
            truncated=finished.text_reason == "length" and count < (params.max_tokens or MAX_INT),
            stop_type=_stop_type(finished),
            stopping_word=finished.stop if isinstance(finished.stop, str) else "",
            tokens_cached=usage.cached_tokens,
            timings=timings(
                ended.timing, usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, count
            ),
            completion_probabilities=self.probabilities(choice.logprobs),
            system_fingerprint=prepared.fingerprint,
            warnings=call.warnings or UNSET,
        )

    def probabilities(self, tokens: Sequence[TokenText]) -> list[TokenProbability] | UnsetType:
        """The probabilities of tokens, where they were asked for."""
        return [_probability(token) for token in tokens] if self.body.n_probs else UNSET


class LlamaEvents:
    """The events of a streamed reply: one for each step of a choice, and one at its end."""

    media_type = MEDIA_TYPE

    def __init__(self, reply: LlamaReply, prepared: Prepared, call: CallContext) -> None:
        self._reply, self._prepared, self._call = reply, prepared, call
        self._choices: dict[int, ChoiceResult] = {}
        self._first_s: float | None = None
        self._ended_s = time.monotonic() - call.arrival_s

    def opening(self) -> bytes:
        """Nothing: the first event comes with the first token."""
        return b""

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """What a batch of events comes to."""
        written = bytearray()
        for event in events:
            if isinstance(event, OutputDelta):
                self._choice(event.choice).add(event)
                written += self._chunk(event.choice, event.parts, event.tokens, event.logprobs)
            elif isinstance(event, OutputFinished):
                self._choice(event.choice).add(event)
                if event.parts:
                    written += self._chunk(event.choice, event.parts, (), ())
            elif isinstance(event, PromptFinished):
                written += self._last(event)
        return bytes(written)

    def _choice(self, index: int) -> ChoiceResult:
        return self._choices.setdefault(index, ChoiceResult())

    def _chunk(
        self,
        index: int,
        parts: Sequence[AnswerEvent],
        tokens: Sequence[int],
        logprobs: Sequence[TokenText],
    ) -> bytes:
        chunk = LlamaChunk(
            index=index,
            content="".join(part.text for part in parts if isinstance(part, Text)),
            tokens=list(tokens),
            tokens_predicted=len(self._choice(index).tokens),
            tokens_evaluated=len(self._prepared.prompts[index // self._prepared.choices].tokens),
            completion_probabilities=self._reply.probabilities(logprobs),
            timings=self._timings(index),
        )
        return sse_event(chunk)

    def _timings(self, index: int) -> Timings | UnsetType:
        """Times so far as this process sees them: the engine sends its own with the end only."""
        if not self._reply.body.timings_per_token:
            return UNSET
        now_s = time.monotonic() - self._call.arrival_s
        self._first_s = now_s if self._first_s is None else self._first_s
        prompt = len(self._prepared.prompts[index // self._prepared.choices].tokens)
        timing = Timing(self._ended_s, self._first_s, now_s)
        return timings(timing, prompt, 0, len(self._choice(index).tokens))

    def _last(self, ended: PromptFinished) -> bytes:
        first = ended.prompt * self._prepared.choices
        written = bytearray()
        for index in range(first, first + self._prepared.choices):
            choice = self._choice(index)
            whole = self._reply.completion(index, self._prepared, choice, ended, self._call)
            written += sse_event(msgspec.structs.replace(whole, content="", tokens=[]))
        return bytes(written)

    def finish(self) -> bytes:
        """Nothing: the last event of each choice says that it has ended."""
        return b""

    def failure(self, error: HeadraceError) -> bytes:
        """The event that ends a stream that has failed."""
        return sse_event(llama_error_body(error))


def _stop_type(finished: OutputFinished) -> StopType:
    if finished.text_reason == "length":
        return "limit"
    return "word" if isinstance(finished.stop, str) else "eos"


def _probability(token: TokenText) -> TokenProbability:
    top = [
        TopToken(one.token, _text(one), list(one.bytes), max(one.logprob, LOWEST_LOGPROB))
        for one in token.top
    ]
    logprob = max(token.logprob, LOWEST_LOGPROB)
    return TokenProbability(token.token, _text(token), list(token.bytes), logprob, top)


def _text(token: TokenText) -> str:
    return token.bytes.decode(errors="replace")


def _selected(whole: LlamaCompletion, fields: Sequence[str] | None) -> object:
    """The whole reply, or the named fields of it; `a/b` is the field b of the object a."""
    if not fields:
        return whole
    content = cast("dict[str, Any]", msgspec.to_builtins(whole))
    found: dict[str, object] = {}
    for field in fields:
        value: Any = content
        for part in field.split("/"):
            value = value.get(part, UNSET) if isinstance(value, dict) else UNSET  # pyright: ignore
        if value is not UNSET:
            found[field] = value
    return found
