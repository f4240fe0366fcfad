"""The page of metrics: what `/metrics` shows of a model that has served nothing yet."""

from __future__ import annotations

from collections.abc import Iterable

from page_text import code, generated, table
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.telemetry.prometheus import NO_ENGINE, ModelReport, expose
from headrace.telemetry.request_metrics import ModelMetrics

INTRODUCTION = """`GET /metrics` answers in Prometheus' text format, or in OpenMetrics where the scraper
accepts it. Units are seconds, bytes and tokens; names of counters end in `_total`. Labels never hold
request ids or user data. How to scrape and what to watch: [Monitoring](../guides/monitoring.md)."""

ALIASES = """The same numbers under the names that vLLM's dashboards read, with the labels `model_name` and
`engine`. Histograms have the samples `_bucket`, `_sum` and `_count`."""


def page() -> str:
    """The whole page."""
    families = list(metric_families())
    own = [each for each in families if each.name.startswith("headrace_")]
    aliases = [each for each in families if each.name.startswith("vllm:")]
    return generated(
        "Metrics",
        "src/headrace/telemetry/prometheus.py",
        INTRODUCTION,
        "## Headrace's metrics",
        table(["metric", "type", "labels", "meaning"], map(_row, own)),
        "## vLLM's names",
        ALIASES,
        table(["metric", "type", "labels", "note"], map(_row, aliases)),
    )


def metric_families() -> Iterable[Metric]:
    """The families of a server with one idle model; everything that is counted by kind has one example."""
    meter = ModelMetrics()
    for counts in (meter.rejected, meter.replies, meter.warnings, meter.errors, meter.cache_misses):
        counts["x"] = 0  # pyright: ignore[reportArgumentType]
    meter.attempts["target ok"] = 0
    body, _ = expose(meter, [ModelReport(name="mini", meter=meter, status=NO_ENGINE, kv_bytes=0)])
    return text_string_to_metric_families(body.decode())


def _row(metric: Metric) -> tuple[str, ...]:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    labels: dict[str, None] = {}
    for sample in metric.samples:
        labels |= dict.fromkeys(label for label in sample.labels if label not in ("le", "quantile"))
    return code(name), metric.type, " ".join(map(code, labels)), metric.documentation
