"""Prometheus metrics: `headrace_...`, and aliases under the names that vLLM dashboards read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from headrace.engine.client import EngineStatus
from headrace.telemetry.histogram import Histogram
from headrace.telemetry.llama_cpp_metrics import llama_cpp_metrics
from headrace.telemetry.model_report import ModelReport
from headrace.telemetry.request_metrics import ModelMetrics

# Our finish reasons -> vLLM's.
VLLM_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}


STATES = ("unloaded", "loading", "loaded", "failed")
NO_ENGINE = EngineStatus(0, 0, 0, 0, 0, 0, 0.0, False)
"""The status of a model that is not loaded."""


def expose(server: ModelMetrics, models: Sequence[ModelReport], *, accept: str = "") -> tuple[bytes, str]:
    """The body and content type of a reply to a scraper; `accept` chooses text or OpenMetrics.

    `server` has the counts of HTTP calls, which are labeled with the first model.
    """
    registry = CollectorRegistry()
    families: dict[str, Metric] = {}
    for report in models:
        for metric in (*_own(report), *_vllm(report)):
            if metric.name in families:
                families[metric.name].samples.extend(metric.samples)
            else:
                families[metric.name] = metric
    registry.register(
        _Snapshot([*_calls(server, models[0].name), *families.values(), *llama_cpp_metrics(models)])
    )
    encode, content_type = choose_encoder(accept)
    # pyright: ignore[reportArgumentType]  # the annotation asks for a registry
    return encode(registry), content_type


class _Snapshot(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _calls(meter: ModelMetrics, model: str) -> Iterator[Metric]:
    make = _Families("headrace_", {"model": model})
    yield make.counters(
        "admission_rejected", "Requests rejected before the engine.", "reason", meter.rejected
    )
    yield make.counters("http_replies", "HTTP replies.", "status", meter.replies)
    yield make.counters("warnings", "Parameters accepted without effect.", "kind", meter.warnings)
    attempts = CounterMetricFamily(
        "headrace_target_attempts",
        "Attempts at the targets of remote models, by outcome: ok, cancelled, or the kind of failure.",
        labels=["target", "outcome"],
    )
    for name, count in sorted(meter.attempts.items()):
        target, _, outcome = name.rpartition(" ")
        attempts.add_metric([target, outcome], count)
    yield attempts
    yield from _response_cache(meter)
    yield make.counter(
        "journal_dropped", "Writes to the journal that the disk refused.", meter.journal_dropped
    )
    yield make.gauge(
        "journal_paused", "1 while the disk takes no records of new requests.", float(meter.journal_paused)
    )
    yield make.counter("log_failures", "Request log entries that could not be stored.", meter.log_failures)


def _response_cache(meter: ModelMetrics) -> Iterator[Metric]:
    outcomes = CounterMetricFamily(
        "headrace_response_cache",
        "Requests and kept answers, by outcome: exact, near, shared, draft, miss; kept, evicted, expired, "
        "purged, audited, mismatch, failed.",
        labels=["model", "outcome"],
    )
    for (model, outcome), count in sorted(meter.answers.items()):
        outcomes.add_metric([model, outcome], count)
    yield outcomes
    saved = CounterMetricFamily(
        "headrace_response_cache_saved_tokens",
        "Tokens of answers that were given again.",
        labels=["model"],
    )
    for model, count in sorted(meter.answer_tokens.items()):
        saved.add_metric([model], count)
    yield saved


def _own(report: ModelReport) -> Iterator[Metric]:
    meter, status = report.meter, report.status
    make = _Families("headrace_", {"model": report.name})
    states = {state: float(state == report.state) for state in STATES}
    yield make.gauges("model_state", "1 for the current state of the model.", "state", states)
    yield make.counter("worker_restarts", "Restarts of the model's worker process.", report.restarts)
    yield make.counter("cache_failures", "Packed weights that were not cached.", report.cache_failures)
    yield make.counter(
        "cache_damages", "Cached weights found damaged, and packed again.", report.cache_damages
    )
    yield make.gauge("requests_running", "Running sequences.", status.running)
    yield make.gauge("requests_waiting", "Sequences waiting in the queue.", status.waiting)
    yield make.counters("requests", "Finished requests.", "finish_reason", meter.ended)
    yield make.counters("request_errors", "Failed requests.", "code", meter.errors)
    yield make.counter("cancelled", "Cancelled requests.", meter.ended["cancelled"])
    yield make.counter("prompt_tokens", "Prompt tokens.", meter.prompt_tokens)
    yield make.counter("generation_tokens", "Tokens generated.", meter.generation_tokens)
    yield make.counter(
        "tokens_saved", "Upper bound of tokens saved by cancelling choices.", meter.tokens_saved
    )
    yield make.counter(
        "prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", meter.cache_queries
    )
    yield make.counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", meter.cache_hits)
    yield make.counters(
        "prefix_cache_miss", "Requests whose prompt was not fully cached.", "reason", meter.cache_misses
    )
    yield make.counter("preemptions", "Preempted sequences.", status.preemptions)
    yield make.counter("steps", "Engine steps.", status.steps)
    yield make.counter("drafted_tokens", "Draft tokens verified.", status.drafted)
    yield make.counter("accepted_tokens", "Draft tokens accepted.", status.accepted)
    yield from _memory(make, status, report.kv_bytes)
    yield make.summary("grammar_mask_seconds", "Time to compute grammar masks.", status.masks, status.mask_s)
    for name, help, histogram in (
        ("time_to_first_token_seconds", "From arrival to the first token.", meter.first_token),
        ("inter_token_latency_seconds", "Time between outputs of a request.", meter.between_tokens),
        ("time_per_output_token_seconds", "Per token after the first.", meter.per_token),
        ("request_seconds", "From arrival to the end.", meter.end_to_end),
        ("request_queue_seconds", "From submission to the first step.", meter.queue),
        ("request_prefill_seconds", "From the first step to the first token.", meter.prefill),
        ("request_decode_seconds", "From the first token to the end.", meter.decode),
        ("request_inference_seconds", "From the first step to the end.", meter.inference),
    ):
        yield make.histogram(name, help, histogram)


def _memory(make: _Families, status: EngineStatus, kv_bytes: int) -> Iterator[Metric]:
    page = kv_bytes / max(status.page_count, 1)
    pages = {
        "free": status.free_pages,
        "cached": status.available_pages - status.free_pages,
        "used": status.page_count - status.available_pages,
    }
    sizes = {state: page * count for state, count in pages.items()}
    yield make.gauges("kv_bytes", "KV cache memory.", "state", sizes)
    yield make.gauge("kv_cache_usage_ratio", "Fraction of KV cache pages in use.", _usage(status))


def _vllm(report: ModelReport) -> Iterator[Metric]:
    meter, status = report.meter, report.status
    make = _Families("vllm:", {"model_name": report.name, "engine": "0"})
    yield make.gauge("num_requests_running", "Alias.", status.running)
    yield make.gauge("num_requests_waiting", "Alias.", status.waiting)
    yield make.gauge("kv_cache_usage_perc", "Alias, from 0 to 1.", _usage(status))
    yield make.counter("num_preemptions", "Alias.", status.preemptions)
    yield make.counter("spec_decode_num_draft_tokens", "Alias.", status.drafted)
    yield make.counter("spec_decode_num_accepted_tokens", "Alias.", status.accepted)
    yield make.counter("prefix_cache_queries", "Alias, in tokens.", meter.cache_queries)
    yield make.counter("prefix_cache_hits", "Alias, in tokens.", meter.cache_hits)
    yield make.counter("prompt_tokens", "Alias.", meter.prompt_tokens)
    yield make.counter("generation_tokens", "Alias.", meter.generation_tokens)
    ended = {theirs: meter.ended[ours] for ours, theirs in VLLM_REASONS.items()}
    yield make.counters("request_success", "Alias.", "finished_reason", ended)
    for name, histogram in (
        ("time_to_first_token_seconds", meter.first_token),
        ("inter_token_latency_seconds", meter.between_tokens),
        ("request_time_per_output_token_seconds", meter.per_token),
        ("e2e_request_latency_seconds", meter.end_to_end),
        ("request_queue_time_seconds", meter.queue),
        ("request_prefill_time_seconds", meter.prefill),
        ("request_decode_time_seconds", meter.decode),
        ("request_inference_time_seconds", meter.inference),
    ):
        yield make.histogram(name, "Alias.", histogram)


def _usage(status: EngineStatus) -> float:
    used = status.page_count - status.available_pages
    return used / max(status.page_count, 1)  # nothing is used of a model that is not loaded


class _Families:
    """Creates metrics that share a prefix and labels."""

    def __init__(self, prefix: str, labels: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._names, self._values = list(labels), list(labels.values())

    def gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, help, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def gauges(self, name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, help, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family

    def counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(self._prefix + name, help, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def counters(
        self, name: str, help: str, label: str, values: Mapping[str, int] | Mapping[int, int]
    ) -> Metric:
        family = CounterMetricFamily(self._prefix + name, help, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, str(key)], value)
        return family

    def summary(self, name: str, help: str, count: int, total: float) -> Metric:
        family = SummaryMetricFamily(self._prefix + name, help, labels=self._names)
        family.add_metric(self._values, count, total)
        return family

    def histogram(self, name: str, help: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, help, labels=self._names)
        named = self._prefix == "headrace_"  # aliases need none
        buckets = _buckets(histogram) if named else histogram.buckets()
        family.add_metric(self._values, buckets, histogram.total)
        return family


def _buckets(histogram: Histogram) -> list[Any]:
    """Its buckets, with exemplars, which OpenMetrics alone shows."""
    found: list[Any] = histogram.buckets()
    for place, (trace_id, value, at_s) in list(histogram.exemplars.items()):
        found[place] = (*found[place], Exemplar({"trace_id": trace_id}, value, at_s))
    return found
