"""Aliases under the names that dashboards of llama.cpp's server read: no labels, all models added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.telemetry.model_report import ModelReport


def llama_cpp_metrics(models: Sequence[ModelReport]) -> Iterator[Metric]:
    """The metrics; `prompt_tokens_total` leaves out those that were found in the prefix cache."""
    meters, statuses = [report.meter for report in models], [report.status for report in models]
    cached = sum(meter.cache_hits for meter in meters)
    prompt = sum(meter.prompt_tokens for meter in meters) - cached
    predicted = sum(meter.generation_tokens for meter in meters)
    prefill_s = sum(meter.prefill.total for meter in meters)
    decode_s = sum(meter.decode.total for meter in meters)
    counters = {
        "prompt_tokens": prompt,
        "prompt_tokens_cached": cached,
        "prompt_seconds": prefill_s,
        "tokens_predicted": predicted,
        "tokens_predicted_seconds": decode_s,
        "n_decode": sum(status.steps for status in statuses),
        "spec_decode_num_draft_tokens": sum(status.drafted for status in statuses),
        "spec_decode_num_accepted_tokens": sum(status.accepted for status in statuses),
    }
    gauges = {
        "prompt_tokens_seconds": prompt / prefill_s if prefill_s else 0.0,
        "predicted_tokens_seconds": predicted / decode_s if decode_s else 0.0,
        "requests_processing": sum(status.running for status in statuses),
        "requests_deferred": sum(status.waiting for status in statuses),
    }
    for name, value in counters.items():
        yield CounterMetricFamily(f"llamacpp:{name}", "Alias.", value=value)
    for name, value in gauges.items():
        yield GaugeMetricFamily(f"llamacpp:{name}", "Alias.", value=value)
