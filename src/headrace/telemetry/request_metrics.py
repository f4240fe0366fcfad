"""Metrics from engine events: latencies, tokens, finish reasons, cache hits. Single-threaded.

All times are monotonic.
"""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from headrace.engine.request import ChoiceFinished, Delta, EngineEvent, RequestFailed, RequestFinished
from headrace.telemetry.histogram import Histogram


class ModelMetrics(Struct):
    """The totals of one model since the server started.

    Definitions: `first_token` is from a request's arrival to its first token; `between_tokens` the
    intervals between outputs of one request; `per_token` = (end-to-end - first token) / (tokens of a choice
    - 1).
    Queue, prefill and decode times are measured by the engine, from submission.
    """

    first_token: Histogram = field(default_factory=Histogram)
    between_tokens: Histogram = field(default_factory=Histogram)
    per_token: Histogram = field(default_factory=Histogram)
    end_to_end: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    prefill: Histogram = field(default_factory=Histogram)
    decode: Histogram = field(default_factory=Histogram)
    inference: Histogram = field(default_factory=Histogram)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    tokens_saved: int = 0  # upper bound: tokens of choices cancelled because they could not change the result
    cache_queries: int = 0  # prompt tokens looked up in the prefix cache
    cache_hits: int = 0  # prompt tokens found in it
    cache_misses: Counter[str] = field(default_factory=Counter[str])  # requests, by reason
    ended: Counter[str] = field(default_factory=Counter[str])  # requests, by finish reason or "error"
    errors: Counter[str] = field(default_factory=Counter[str])  # failed requests, by code
    # requests rejected before the engine, by reason
    rejected: Counter[str] = field(default_factory=Counter[str])
    warnings: Counter[str] = field(default_factory=Counter[str])  # by parameter
    replies: Counter[int] = field(default_factory=Counter[int])  # HTTP responses, by status
    attempts: Counter[str] = field(default_factory=Counter[str])  # at remote targets, by "TARGET OUTCOME"
    answers: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Of the response cache: by model, and what became of a request or a kept answer."""
    answer_tokens: Counter[str] = field(default_factory=Counter[str])  # that it has saved, by model
    log_failures: int = 0
    journal_dropped: int = 0
    journal_paused: bool = False


class RequestMetrics:
    """Follows one request through the engine. `arrival_s` is the arrival time of its HTTP request, `trace_id`
    its trace, where somebody records that."""

    __slots__ = ("_arrival_s", "_first_s", "_last_s", "_meter", "_reason", "_trace_id")

    def __init__(self, meter: ModelMetrics, arrival_s: float, trace_id: str = "") -> None:
        self._meter, self._trace_id = meter, trace_id
        self._arrival_s = arrival_s
        self._first_s = self._last_s = 0.0
        self._reason = ""

    def take(self, events: list[EngineEvent], now_s: float) -> None:
        """Count the events of one step. Called for every token, so it does only a few additions."""
        meter = self._meter
        for event in events:
            if type(event) is Delta:
                meter.generation_tokens += len(event.tokens)
            elif type(event) is ChoiceFinished:
                self._reason = self._reason or event.reason
            elif type(event) is RequestFinished:
                self._done(event, now_s)
            elif type(event) is RequestFailed:
                meter.ended["error"] += 1
                meter.errors[event.error.code or event.error.kind] += 1
        if type(events[0]) is Delta:
            if self._first_s == 0.0:
                self._first_s = now_s
                meter.first_token.observe(now_s - self._arrival_s, self._trace_id)
            else:
                meter.between_tokens.observe(now_s - self._last_s)
            self._last_s = now_s

    def _done(self, event: RequestFinished, now_s: float) -> None:
        meter, usage, timing, trace_id = self._meter, event.usage, event.timing, self._trace_id
        meter.ended[self._reason] += 1
        meter.prompt_tokens += usage.prompt_tokens
        meter.tokens_saved += usage.tokens_saved
        meter.cache_queries += usage.prompt_tokens
        meter.cache_hits += usage.cached_tokens
        if usage.cache_miss_reason is not None:
            meter.cache_misses[usage.cache_miss_reason] += 1
        meter.end_to_end.observe(now_s - self._arrival_s, trace_id)
        meter.queue.observe(timing.queue_s, trace_id)
        if not self._first_s:
            return  # cancelled before it ran: it has no timings
        meter.prefill.observe(timing.first_token_s - timing.queue_s, trace_id)
        meter.decode.observe(timing.total_s - timing.first_token_s, trace_id)
        meter.inference.observe(timing.total_s - timing.queue_s, trace_id)
        if usage.completion_tokens > 1:
            meter.per_token.observe((now_s - self._first_s) / (usage.completion_tokens - 1), trace_id)
