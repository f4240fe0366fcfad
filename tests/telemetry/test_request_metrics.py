"""Metrics from engine events, and their exposition."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.client import EngineStatus
from headrace.engine.request import (
    ChoiceFinished,
    Delta,
    EngineEvent,
    RequestFailed,
    RequestFinished,
    Timing,
    Usage,
)
from headrace.errors import DeadlineExceeded
from headrace.telemetry.histogram import Histogram
from headrace.telemetry.prometheus import ModelReport, expose
from headrace.telemetry.request_metrics import ModelMetrics, RequestMetrics

STATUS = EngineStatus(2, 3, 10, 60, 100, 7, 0.0, True, preemptions=4, masks=8, mask_s=0.5)


def done(prompt: int = 40, generated: int = 3, cached: int = 16) -> RequestFinished:
    return RequestFinished(
        Usage(prompt, generated, cached, "diverged", tokens_saved=11), Timing(0.5, 1.5, 4.5), seed=1
    )


def ran() -> ModelMetrics:
    """One request: it arrives at 10 s, its tokens at 12, 13 and 15 s."""
    meter = ModelMetrics()
    request = RequestMetrics(meter, arrival_s=10.0)
    request.take([Delta(0, "a", (1,))], 12.0)
    request.take([Delta(0, "b", (2,))], 13.0)
    request.take([Delta(0, "c", (3,)), ChoiceFinished(0, "stop"), done()], 15.0)
    return meter


def report(meter: ModelMetrics, name: str = "m") -> ModelReport:
    return ModelReport(name=name, meter=meter, status=STATUS, kv_bytes=1000)


def samples(meter: ModelMetrics, accept: str = "") -> dict[str, float]:
    body, _ = expose(meter, [report(meter)], accept=accept)
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model", "model_name", "engine")}
            found[sample.name + "".join(f"{{{k}={v}}}" for k, v in labels.items())] = sample.value
    return found


def test_the_latencies_of_a_request_follow_the_definitions() -> None:
    meter = ran()
    for histogram, count, total in (
        (meter.first_token, 1, 2.0),
        (meter.between_tokens, 2, 3.0),
        (meter.per_token, 1, 1.5),
        (meter.end_to_end, 1, 5.0),
        (meter.queue, 1, 0.5),
        (meter.prefill, 1, 1.0),
        (meter.decode, 1, 3.0),
        (meter.inference, 1, 4.0),
    ):
        assert (histogram.count, histogram.total) == (count, pytest.approx(total))


def test_every_metric_under_both_names() -> None:
    found = samples(ran())
    expected = {
        "headrace_requests_running": 2,
        "headrace_requests_waiting": 3,
        "headrace_requests_total{finish_reason=stop}": 1,
        "headrace_prompt_tokens_total": 40,
        "headrace_generation_tokens_total": 3,
        "headrace_tokens_saved_total": 11,
        "headrace_prefix_cache_queries_total": 40,
        "headrace_prefix_cache_hits_total": 16,
        "headrace_prefix_cache_miss_total{reason=diverged}": 1,
        "headrace_preemptions_total": 4,
        "headrace_kv_bytes{state=free}": 100,
        "headrace_kv_bytes{state=cached}": 500,
        "headrace_kv_bytes{state=used}": 400,
        "headrace_grammar_mask_seconds_sum": 0.5,
        "headrace_grammar_mask_seconds_count": 8,
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 3,
        "vllm:num_preemptions_total": 4,
        "vllm:kv_cache_usage_perc": 0.4,
        "vllm:prefix_cache_queries_total": 40,
        "vllm:prefix_cache_hits_total": 16,
        "vllm:prompt_tokens_total": 40,
        "vllm:generation_tokens_total": 3,
        "vllm:request_success_total{finished_reason=stop}": 1,
        "vllm:request_success_total{finished_reason=abort}": 0,
        "vllm:time_to_first_token_seconds_sum": 2,
        "vllm:time_to_first_token_seconds_bucket{le=2.5}": 1,
        "vllm:time_to_first_token_seconds_bucket{le=1.0}": 0,
        "vllm:inter_token_latency_seconds_count": 2,
        "vllm:e2e_request_latency_seconds_sum": 5,
        "vllm:request_queue_time_seconds_sum": 0.5,
        "vllm:request_prefill_time_seconds_sum": 1,
        "vllm:request_decode_time_seconds_sum": 3,
        "vllm:request_inference_time_seconds_sum": 4,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_open_metrics_by_accept_header() -> None:
    body, kind = expose(ran(), [report(ran())], accept="application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("last", "name"),
    [
        ([ChoiceFinished(0, "cancelled"), done()], "cancelled"),
        ([ChoiceFinished(0, "length"), done()], "length"),
        ([RequestFailed(DeadlineExceeded("late"))], "error"),
    ],
)
def test_every_request_is_counted_once_by_finish_reason(last: list[EngineEvent], name: str) -> None:
    meter = ModelMetrics()
    RequestMetrics(meter, 0.0).take(last, 1.0)
    assert dict(meter.ended) == {name: 1}
    assert meter.first_token.count == 0
    if name == "error":
        assert dict(meter.errors) == {"deadline_exceeded": 1}


def test_buckets_include_their_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
