"""From inference events to a reply of OpenAI's two generating endpoints, whole or streamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import UNSET, Raw, Struct, UnsetType

from headrace.api.http.errors import error_body
from headrace.api.http.event_stream import DONE, MEDIA_TYPE, SseTemplate, sse_event
from headrace.api.openai.best_of import scaling_note
from headrace.api.openai.generation_body import StreamOptions, granted_tier
from headrace.api.openai.schema import (
    ChatChoice,
    ChatChunkChoice,
    CompletionChunkBody,
    CompletionDetails,
    PromptDetails,
    PromptLogprobList,
    Reply,
    ScalingNote,
    ShownPrompt,
    TextChoice,
    Timings,
    UsageBody,
)
from headrace.engine.request import Timing, Usage
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.events import (
    InferenceEvent,
    OutputDelta,
    OutputFinished,
    Prepared,
    PromptFinished,
    PromptScored,
)
from headrace.inference.requests import ScalingSettings
from headrace.inference.result import ChoiceResult, ResultCollector


class OutputFormatter(Protocol):
    """What differs between the endpoints: the choices."""

    reply_object: str
    chunk_object: str

    @property
    def prompt_logprobs(self) -> PromptLogprobList | UnsetType:
        """Log probabilities of the prompt, where they belong to the reply and not to its choices."""
        ...

    def prompt(self, event: PromptScored) -> None:
        """Take the log probabilities of a prompt."""
        ...

    def opening(self, index: int) -> ChatChunkChoice | TextChoice | None:
        """The first chunk of a choice, before any text."""
        ...

    def delta(self, index: int, event: OutputDelta) -> ChatChunkChoice | TextChoice | None:
        """A chunk of new text; None where the event adds nothing visible."""
        ...

    def ending(self, index: int, event: OutputFinished) -> ChatChunkChoice | TextChoice:
        """The last chunk of a choice."""
        ...

    def whole(
        self, index: int, prompt: int, choice: ChoiceResult, note: ScalingNote | UnsetType
    ) -> ChatChoice | TextChoice:
        """A whole choice."""
        ...


class ReplyOptions(Struct, frozen=True):
    """What a reply needs of its request. `keep` of the choices of each prompt are returned."""

    id: str
    keep: int
    scaling: ScalingSettings | None = None
    stream: StreamOptions = StreamOptions()
    shows_prompt: bool = False
    priority: int | None = None
    """Where a service tier is asked for."""

    def tier_of(self, call: CallContext) -> str | UnsetType:
        """The service tier that the request got, where it asked for one: a key may not have all of them."""
        return UNSET if self.priority is None else granted_tier(self.priority, call)

    def shown(self, prepared: Prepared) -> ShownPrompt | UnsetType:
        """The prompt of a chat, where it is to be shown."""
        return ShownPrompt(prepared.prompts[0].text) if self.shows_prompt else UNSET


class OpenAIReply:
    """Chat completions and completions; `new_formatter` makes what differs between them."""

    def __init__(self, options: ReplyOptions, new_formatter: Callable[[Prepared], OutputFormatter]) -> None:
        self._options = options
        self._new_formatter = new_formatter

    def whole(self, prepared: Prepared, result: ResultCollector, call: CallContext) -> Reply:
        """The reply that is not streamed."""
        options, formatter = self._options, self._new_formatter(prepared)
        choices: list[ChatChoice | TextChoice] = []
        for number, prompt in enumerate(result.prompts):
            if prompt.scores is not None:
                formatter.prompt(PromptScored(number, prompt.scores))
            for choice in prompt.ranked(options.keep):
                note = scaling_note(options.scaling, prompt.selection, prompt.choices.index(choice))
                choices.append(formatter.whole(len(choices), number, choice, note))
        reasoning = sum(
            choice.ended.reasoning_tokens for one in result.prompts for choice in one.ranked(options.keep)
        )
        return Reply(
            id=options.id,
            object=formatter.reply_object,
            created=int(call.arrived_unix_s),
            model=prepared.model,
            choices=choices,
            usage=usage_body(result.usages, reasoning),
            service_tier=options.tier_of(call),
            seed=_seed([prompt.ended for prompt in result.prompts]),
            warnings=call.warnings or UNSET,
            guards=call.verdicts or UNSET,
            prompt_logprobs=formatter.prompt_logprobs,
            timings=timings_of([prompt.ended for prompt in result.prompts]),
            system_fingerprint=prepared.fingerprint,
            shown_prompt=options.shown(prepared),
        )

    def stream(self, prepared: Prepared, call: CallContext) -> ChunkWriter:
        """The writer of a streamed reply."""
        return ChunkWriter(self._options, self._new_formatter(prepared), prepared, call)


class ChunkWriter:
    """The server-sent events of either generating endpoint."""

    media_type = MEDIA_TYPE

    def __init__(
        self, options: ReplyOptions, formatter: OutputFormatter, prepared: Prepared, call: CallContext
    ) -> None:
        self._options = options
        self._formatter = formatter
        self._prepared = prepared
        self._model = prepared.model
        self._tokens: dict[int, int] = {}  # of each choice that has begun
        self._finished: list[PromptFinished] = []
        self._reasoning_tokens = 0
        self._call = call
        self._warned = self._judged = 0  # warnings and verdicts that were sent
        self._shown = options.shown(prepared)
        self._plain: SseTemplate | None = None

    def opening(self) -> bytes:
        """Nothing: the first chunk comes with the first token."""
        return b""

    def events(self, events: Sequence[InferenceEvent]) -> bytes:
        """Chunks for a batch of events."""
        written = bytearray()
        for event in events:
            if isinstance(event, OutputDelta | OutputFinished):
                for part in self._parts(event):
                    if part is not None:
                        written += self._written(part, event.choice)
            elif isinstance(event, PromptFinished):
                self._finished.append(event)
            elif isinstance(event, PromptScored):
                self._formatter.prompt(event)
        return bytes(written)

    def _parts(self, event: OutputDelta | OutputFinished) -> list[ChatChunkChoice | TextChoice | None]:
        index, formatter = event.choice, self._formatter
        parts = [formatter.opening(index)] if index not in self._tokens else []
        before = self._tokens.setdefault(index, 0)
        if isinstance(event, OutputDelta):
            self._tokens[index] = before + len(event.tokens)
            return [*parts, formatter.delta(index, event)]
        self._reasoning_tokens += event.reasoning_tokens
        return [*parts, formatter.ending(index, event)]

    def _written(self, choice: ChatChunkChoice | TextChoice, index: int) -> bytes:
        """A chunk. Where nothing but the choice differs from other chunks, the rest is encoded once."""
        if self._has_news or self._options.stream.continuous_usage_stats:
            return sse_event(self._chunk(choice, index))
        if self._plain is None:
            self._plain = SseTemplate(lambda part: self._chunk(part, index))
        return self._plain.event(choice)

    @property
    def _has_news(self) -> bool:
        call = self._call
        is_told = len(call.warnings) == self._warned and len(call.verdicts) == self._judged
        return not is_told or self._shown is not UNSET

    def _chunk(self, choice: ChatChunkChoice | TextChoice | Raw, index: int) -> CompletionChunkBody:
        warnings, verdicts = self._call.warnings[self._warned :], self._call.verdicts[self._judged :]
        self._warned += len(warnings)
        self._judged += len(verdicts)
        shown, self._shown = self._shown, UNSET
        return CompletionChunkBody(
            id=self._options.id,
            object=self._formatter.chunk_object,
            created=int(self._call.arrived_unix_s),
            model=self._model,
            choices=[choice],
            usage=self._usage(index),
            service_tier=self._options.tier_of(self._call),
            warnings=warnings or UNSET,
            guards=verdicts or UNSET,
            system_fingerprint=self._prepared.fingerprint,
            shown_prompt=shown,
        )

    def _usage(self, index: int) -> UsageBody | UnsetType | None:
        """What a chunk of a choice says of token counts."""
        if not self._options.stream.include_usage:
            return UNSET
        if not self._options.stream.continuous_usage_stats:
            return None
        prompt = len(self._prepared.prompts[index // self._prepared.choices].tokens)
        if not prompt:  # a remote model's counts come at the end
            return None
        return UsageBody(prompt, self._tokens[index], prompt + self._tokens[index])

    def finish(self) -> bytes:
        """The chunk of token counts, if it was asked for, and the end."""
        return (sse_event(self._counts()) if self._options.stream.include_usage else b"") + DONE

    def failure(self, error: HeadraceError) -> bytes:
        """The chunk that ends a stream that failed."""
        return sse_event(error_body(error))

    def _counts(self) -> CompletionChunkBody:
        return CompletionChunkBody(
            id=self._options.id,
            object=self._formatter.chunk_object,
            created=int(self._call.arrived_unix_s),
            model=self._model,
            choices=[],
            usage=usage_body([one.usage for one in self._finished], self._reasoning_tokens),
            seed=_seed(self._finished),
            timings=timings_of(self._finished),
            system_fingerprint=self._prepared.fingerprint,
        )


def usage_body(usages: Sequence[Usage], reasoning_tokens: int = 0) -> UsageBody:
    """Token counts, added up over the prompts of one request."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    reasons = [usage.cache_miss_reason for usage in usages if usage.cache_miss_reason is not None]
    details = PromptDetails(sum(usage.cached_tokens for usage in usages), reasons[0] if reasons else None)
    saved = sum(usage.tokens_saved for usage in usages)
    parts = CompletionDetails(
        reasoning_tokens,
        sum(usage.accepted_prediction_tokens for usage in usages),
        sum(usage.rejected_prediction_tokens for usage in usages),
        saved or UNSET,
    )
    return UsageBody(prompt, completion, prompt + completion, details, parts)


def timings_of(finished: Sequence[PromptFinished]) -> Timings:
    """Times of a reply: tokens of all its prompts, and the time until the last of them had ended."""
    usages = [one.usage for one in finished]
    cached = sum(usage.cached_tokens for usage in usages)
    prompt = sum(usage.prompt_tokens for usage in usages)
    generated = sum(usage.completion_tokens for usage in usages)
    last = max((one.timing for one in finished), key=lambda timing: timing.total_s)
    return timings(last, prompt - cached, cached, generated)


def timings(timing: Timing, computed: int, cached: int, generated: int) -> Timings:
    """Times of `computed` tokens of a prompt, of which `cached` more were there, and of `generated` ones."""
    prompt_ms = (timing.first_token_s - timing.queue_s) * 1e3
    ms, steps = (timing.total_s - timing.first_token_s) * 1e3, max(0, generated - 1)
    return Timings(
        cached,
        *(computed, prompt_ms, prompt_ms / max(1, computed), _per_second(computed, prompt_ms)),
        *(generated, ms, ms / steps if steps else 0.0, _per_second(steps, ms)),
    )


def _per_second(count: int, ms: float) -> float:
    return 1e3 / ms * count if ms > 0 else 0.0


def _seed(finished: Sequence[PromptFinished]) -> int | UnsetType:
    """The seed that repeats the reply; none where each of several prompts drew its own."""
    seeds = {one.seed for one in finished}
    seed = seeds.pop() if len(seeds) == 1 else None
    return UNSET if seed is None else seed
