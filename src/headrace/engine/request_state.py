"""The state of one request: its choices, their tokens as text, why they ended, its usage."""

from __future__ import annotations

from collections.abc import Sequence as PySequence

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    EngineRequest,
    EventCallback,
    FinishReason,
    RequestFailed,
    RequestFinished,
    Timing,
    TokenLogprob,
    Usage,
)
from headrace.engine.request_trace import RequestTrace
from headrace.engine.sampling.prompt_scores import PromptScores
from headrace.engine.sampling.sequence_group import SequenceGroup
from headrace.engine.scaling.controller import TOTAL, ScalingController, Stop
from headrace.engine.scheduler.sequence import Sequence
from headrace.errors import HeadraceError
from headrace.grammar.matcher import Matcher
from headrace.grammar.token_table import Mask
from headrace.sampling.banned_strings import BannedStrings
from headrace.sampling.reasoning_budget import ReasoningState
from headrace.sampling.sampler import SamplerState
from headrace.tokenization.detokenizer import Detokenizer
from headrace.tokenization.stop_strings import StopMatcher

FINISHED = "finish_within_max_tokens"
"""Why a choice ended that took a short way to its end."""
QUICK_S = 0.002  # for one mask; most take a fraction


class ChoiceState(Struct, eq=False):
    """One choice: its sequence, sampling state and text, and what its tokens are limited to."""

    sequence: Sequence
    row: SamplerState
    detokenizer: Detokenizer
    stops: StopMatcher
    stop_ids: frozenset[int]
    request_state: RequestState
    matcher: Matcher | None = None
    fixed_mask: Mask | None = None
    banned: BannedStrings | None = None
    scores: PromptScores | None = None
    thinking: ReasoningState | None = None
    limited_by: str | None = None  # which budget of all choices made its limit lower
    done: bool = False
    grammar_s: float = 0.0  # that its last mask took
    put_off: int = 0  # steps in a row that did not wait for it

    @property
    def patience(self) -> tuple[bool, int]:
        """Orders choices by how soon they get a mask: those that were quick, then who has waited longest."""
        return self.grammar_s > QUICK_S, -self.put_off

    @property
    def free(self) -> bool:
        """Whether its next token may be any."""
        ends = self.thinking is not None and self.thinking.forced is not None
        return self.matcher is None and self.fixed_mask is None and self.banned is None and not ends

    @property
    def simple(self) -> bool:
        """Whether its tokens follow from logits and `row` alone: several may be sampled without the loop."""
        params = self.request_state.request.params
        limited = self.matcher or self.fixed_mask is not None or self.banned or self.thinking
        watched = self.request_state.scaling or params.logprobs is not None
        return not (limited or watched or params.mirostat or params.dry_multiplier)

    def accept(self, token: int, logprob: TokenLogprob | None) -> list[EngineEvent]:
        """Append a sampled token and those that are forced after it: events with the text that is certain
        now, and the end of the choice if one of them ends it. GrammarError where the grammar fails."""
        scaling = self.request_state.scaling
        if scaling is not None and not scaling.limit_to_budget(self):
            return self.cut("length", TOTAL)
        if self.thinking is not None:
            token = self.thinking.instead_of(token, stops=token in self.stop_ids)
        tokens = [token]
        text, reason, stop = self._append(token)
        while reason is None and (forced := self._forced()) is not None:
            tokens.append(forced)
            more, reason, stop = self._append(forced)
            text += more
        if reason is not None and not isinstance(stop, str):
            text += self._rest()
        logprobs = () if logprob is None else (logprob,)
        events: list[EngineEvent] = [Delta(self.sequence.choice, text, tuple(tokens), logprobs)]
        if reason is not None:
            events.append(self.end(reason, stop))
        return events

    def accept_sampled(self, sampled: PySequence[int]) -> list[EngineEvent]:
        """Append tokens that were sampled one after the other for a simple choice, and that its sampler state
        has recorded: as `accept` of each, up to its end, with the text of all in one event."""
        texts: list[str] = []
        for count, token in enumerate(sampled, 1):
            text, reason, stop = self._append(token, recorded=True)
            texts.append(text)
            if reason is not None:
                if not isinstance(stop, str):
                    texts.append(self._rest())
                return [self._delta(texts, sampled[:count]), self.end(reason, stop)]
        return [self._delta(texts, sampled)]

    def _delta(self, texts: list[str], tokens: PySequence[int]) -> Delta:
        return Delta(self.sequence.choice, "".join(texts), tuple(tokens))

    def end(self, reason: FinishReason, stop: str | int | None = None) -> ChoiceFinished:
        """Mark the choice as ended."""
        self.done = True
        if reason == "length" and stop is None:
            stop = self.limited_by
        if reason == "stop" and self.matcher is not None and self.matcher.finishing:
            stop = FINISHED
        return ChoiceFinished(self.sequence.choice, reason, stop)

    def cut(self, reason: FinishReason, cause: str) -> list[EngineEvent]:
        """End the choice between two tokens, with the text that was not sent yet."""
        rest = self._rest()
        return [*([Delta(self.sequence.choice, rest, ())] if rest else []), self.end(reason, cause)]

    def _append(
        self, token: int, *, recorded: bool = False
    ) -> tuple[str, FinishReason | None, str | int | None]:
        """Append a token: its text, why the choice ends with it, and the stop string or token that did it."""
        self.sequence.tokens.append(token)
        if not recorded:
            self.row.append(token)
        if self.banned is not None:
            self.banned.accept(token)
        if self.thinking is not None:
            self.thinking.take(token)
        if token in self.stop_ids:
            return "", "stop", token
        generated = len(self.sequence.tokens) - self.sequence.prompt_length
        min_tokens = self.request_state.request.params.min_tokens
        text, stop = self._text(token, watched=generated > min_tokens)
        if stop is not None:
            return text, "stop", stop
        if self.matcher is not None:
            self.matcher.accept(token)
            if self.matcher.finished and generated >= min_tokens:
                return text, "stop", None
        return text, "length" if len(self.sequence.tokens) >= self.sequence.max_length else None, None

    def _forced(self) -> int | None:
        """The next token where it needs no step: its logits are not reported and cannot change it."""
        params = self.request_state.request.params
        token = None
        if params.logprobs is not None or params.mirostat or params.bad_words:
            return None
        if self.thinking is not None:
            token = self.thinking.forced
        limited = self.fixed_mask is not None or self.banned is not None
        if token is None and self.matcher is not None and not limited:
            token = self.matcher.forced
        early = self.row.position < params.min_tokens
        return None if early and token in self.stop_ids else token

    def _text(self, token: int, *, watched: bool) -> tuple[str, str | None]:
        text = self.detokenizer.push(token)
        return self.stops.push(text) if watched else (text, None)

    def _rest(self) -> str:
        """The text not sent yet, at the end: bytes of an unfinished character, the start of a stop string."""
        text, stop = self.stops.push(self.detokenizer.flush())
        return text if stop is not None else text + self.stops.flush()


class RequestState(Struct, eq=False):
    """A request in the engine. Times are seconds of the monotonic clock."""

    request_id: str
    request: EngineRequest
    sink: EventCallback
    seed: int
    submitted_s: float
    trace: RequestTrace
    choices: list[ChoiceState] = field(default_factory=list[ChoiceState])
    late_s: float = 0.0  # predicted for its first token, where that is after `target_s`
    target_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    group: SequenceGroup | None = None  # instead of choices
    accepted_drafts: int = 0  # tokens
    rejected_drafts: int = 0
    scaling: ScalingController | None = None
    adapter_slot: int = -1

    @property
    def done(self) -> bool:
        return all(choice.done for choice in self.choices)

    def finished(self, now_s: float) -> RequestFinished:
        """The terminal event of a request whose choices have all ended."""
        timing = Timing(
            queue_s=(self.scheduled_s or now_s) - self.submitted_s,
            first_token_s=(self.first_token_s or now_s) - self.submitted_s,
            total_s=now_s - self.submitted_s,
            late_s=self.late_s,
            target_s=self.target_s,
        )
        usage = self._usage() if self.group is None else self.group.usage()
        trace = self.trace.finish(self.accepted_drafts, self.rejected_drafts)
        return RequestFinished(usage, timing, self.seed, trace)

    def apply_scaling(self, events: list[EngineEvent]) -> list[EngineEvent]:
        """The events of a step, with the ends of choices that the request's scaling stops for them, and when
        all have ended the selection."""
        scaling = self.scaling
        if scaling is None or any(isinstance(event, RequestFailed) for event in events):
            return events
        try:
            return self._stopped(scaling, events, scaling.consume(events))
        except HeadraceError as error:
            return [*events, RequestFailed(error)]

    def expired(self, error: HeadraceError) -> list[EngineEvent]:
        """The events at the deadline: the best choice so far where `scaling` ranks them, else the error."""
        try:
            stops = [] if self.scaling is None else self.scaling.expire()
            return (
                self._stopped(self.scaling, [], stops) if self.scaling and stops else [RequestFailed(error)]
            )
        except HeadraceError as failure:
            return [RequestFailed(failure)]

    def _stopped(
        self, scaling: ScalingController, events: list[EngineEvent], stops: list[Stop]
    ) -> list[EngineEvent]:
        while stops:
            ends = [end for stop in stops for end in self.choices[stop.choice].cut(stop.reason, stop.cause)]
            events = [*events, *ends]
            stops = scaling.consume(ends)
        return [*events, scaling.selection()] if self.done else events

    def _usage(self) -> Usage:
        first = self.choices[0].sequence
        generated = sum(len(c.sequence.tokens) - c.sequence.prompt_length for c in self.choices)
        drafts = (self.accepted_drafts, self.rejected_drafts) if self.request.prediction else (0, 0)
        usage = Usage(first.prompt_length, generated, first.cached_tokens, first.cache_miss_reason, *drafts)
        return usage if self.scaling is None else replace(usage, tokens_saved=self.scaling.tokens_saved)
