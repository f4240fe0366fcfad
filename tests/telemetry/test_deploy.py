"""The dashboard and the alert rules ask for metrics that there are, with labels that these have."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace.engine.client import EngineStatus
from headrace.telemetry.model_report import ModelReport
from headrace.telemetry.prometheus import expose
from headrace.telemetry.request_metrics import ModelMetrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"headrace_\w+")


def metrics() -> dict[str, set[str]]:
    """Of a server that has counted something of everything: labels by the name of a sample."""
    meter = ModelMetrics()
    for counts in (meter.ended, meter.errors, meter.cache_misses, meter.rejected, meter.warnings):
        counts["some"] = 1
    meter.replies[200] = 1
    meter.attempts["work/large ok"] = 1
    meter.answers["mini", "exact"] = 1
    meter.answer_tokens["mini"] = 1
    meter.first_token.observe(0.1, "0af7651916cd43dd8448eb211c80319c")
    status = EngineStatus(1, 2, 3, 4, 5, 6, 7.0, True)
    report = ModelReport(name="mini", meter=meter, status=status, kv_bytes=100)
    body, _ = expose(meter, [report], accept="application/openmetrics-text")
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


METRICS = metrics()


def check(expression: str) -> None:
    names = NAME.findall(expression)
    assert names or 'up{job="headrace"}' in expression, expression
    for name in names:
        assert name in METRICS, f"{name} of {expression} does not exist"
    labels = set().union(*(METRICS[name] for name in names), {"instance"})
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert {one.strip() for one in group.split(",")} <= labels, expression
    for label in re.findall(r"[{,](\w+)=~?\"", expression.replace('up{job="headrace"}', "")):
        assert label in labels, expression


def test_the_dashboard_is_the_generated_one_and_its_metrics_exist() -> None:
    spec = importlib.util.spec_from_file_location("make_dashboard", ROOT / "scripts" / "make_dashboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DEPLOY / "grafana" / "headrace.json").read_text()
    assert text == module.text(), "run scripts/make_dashboard.py"
    panels = [one for one in json.loads(text)["panels"] if one["type"] != "row"]
    assert len(panels) > 15 and len({one["id"] for one in panels}) == len(panels)
    places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels}
    assert len(places) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            check(target["expr"])


def test_the_rules_ask_for_metrics_that_exist() -> None:
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    rules = re.findall(r"- alert: (\w+)\n +expr: (?:>-\n)?((?:.|\n)*?)\n +(?:for|labels):", text)
    assert len(rules) == text.count("- alert:") > 5
    for _, expression in rules:
        check(" ".join(expression.split()))


def test_promtool_takes_the_rules() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        [tool, "check", "rules", DEPLOY / "prometheus" / "alerts.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def compose_command() -> list[str]:
    """Compose as a plugin of docker, or as a program of its own; skips where neither is there."""
    for command in (["docker", "compose"], ["docker-compose"], ["podman-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True).returncode == 0
        ):
            return command
    pytest.skip("there is no docker compose")


@pytest.mark.parametrize(
    ("file", "services"),
    [
        ("compose.yml", {"headrace:", "prometheus:", "jaeger:", "grafana:"}),
        ("compose.cluster.yml", {"front:", "worker:"}),
    ],
)
def test_compose_takes_the_file(file: str, services: set[str]) -> None:
    secrets = dict.fromkeys(("RAY_AUTH_TOKEN", "HEADRACE_API_KEY", "HEADRACE_ADMIN_API_KEY"), "abc")
    done = subprocess.run(
        [*compose_command(), "-f", DEPLOY / file, "config"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **secrets},
    )
    assert done.returncode == 0, done.stderr
    assert services <= set(done.stdout.split())


def test_what_compose_mounts_is_there() -> None:
    text = (DEPLOY / "compose.yml").read_text()
    mounted = re.findall(r"- (\./[^:]+):", text)
    assert len(mounted) == 4 and all((DEPLOY / path).exists() for path in mounted)
    published = re.findall(r'ports: \["([^"]+)"\]', text)
    assert len(published) == 3 and all(one.startswith("127.0.0.1:") for one in published)


def test_the_image_of_compose_sends_traces() -> None:
    """Which needs an extra that the image does not have by itself."""
    compose, image = (DEPLOY / "compose.yml").read_text(), (ROOT / "Dockerfile").read_text()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in compose and "args: {EXTRAS: otel}" in compose
    assert "ARG EXTRAS=\n" in image and "${EXTRAS:+[$EXTRAS]}" in image


def test_promtool_takes_the_configuration(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    place = tmp_path / "prometheus.yml"
    place.write_text(text.replace("/etc/prometheus/", f"{DEPLOY / 'prometheus'}/"))
    done = subprocess.run([tool, "check", "config", place], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    """promtool's own tests of rules: a queue that grows, workers that restart, a model that is well."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    (tmp_path / "cases.yml").write_text(CASES.replace("RULES", str(DEPLOY / "prometheus" / "alerts.yml")))
    done = subprocess.run([tool, "test", "rules", tmp_path / "cases.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


CASES = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'headrace_requests_waiting{model="busy",instance="a"}'
        values: "30x20"
      - series: 'headrace_requests_waiting{model="well",instance="a"}'
        values: "0 40 0 40 0 40 0 40 0 40 0 40 0 40 0 40 0 40 0"
      - series: 'headrace_worker_restarts_total{model="busy",instance="a"}'
        values: "0 0 1 2 3 4 4 4 4 4 4 4 4 4 4 4"
      - series: 'up{job="headrace",instance="a"}'
        values: "1x9 0x10"
      - series: 'headrace_http_replies_total{status="503",instance="a"}'
        values: "0+10x20"
      - series: 'headrace_http_replies_total{status="200",instance="a"}'
        values: "0+90x20"
      - series: 'headrace_time_to_first_token_seconds_bucket{model="busy",le="2"}'
        values: "0+1x30"
      - series: 'headrace_time_to_first_token_seconds_bucket{model="busy",le="3"}'
        values: "0+7x30"
      - series: 'headrace_time_to_first_token_seconds_bucket{model="busy",le="+Inf"}'
        values: "0+7x30"
    alert_rule_test:
      - {eval_time: 4m, alertname: HeadraceQueueGrows}
      - eval_time: 12m
        alertname: HeadraceQueueGrows
        exp_alerts:
          - exp_labels: {severity: warn, model: busy, instance: a}
            exp_annotations: {summary: "30 sequences of busy have been waiting for 5 minutes"}
      - {eval_time: 9m, alertname: HeadraceDown}
      - eval_time: 12m
        alertname: HeadraceDown
        exp_alerts:
          - exp_labels: {severity: page, job: headrace, instance: a}
            exp_annotations: {summary: "a does not answer"}
      - eval_time: 12m
        alertname: HeadraceErrors
        exp_alerts:
          - exp_labels: {severity: warn, instance: a}
            exp_annotations: {summary: "10% of replies are 5xx"}
      - eval_time: 12m
        alertname: HeadraceWorkerRestarts
        exp_alerts:
          - exp_labels: {severity: page, model: busy, instance: a}
            exp_annotations: {summary: "the worker of busy was restarted 4 times in 15 minutes"}
      - {eval_time: 9m, alertname: HeadraceSlowFirstToken}
      - eval_time: 20m
        alertname: HeadraceSlowFirstToken
        exp_alerts:
          - exp_labels: {severity: warn, model: busy}
            exp_annotations: {summary: "1 in 20 first tokens of busy takes longer than 2.942s"}
"""


def test_a_slow_bucket_names_its_trace() -> None:
    """In OpenMetrics; the older text has no place for it."""
    meter = ModelMetrics()
    meter.first_token.observe(0.3, "0af7651916cd43dd8448eb211c80319c")
    meter.first_token.observe(0.31)
    status = EngineStatus(1, 2, 3, 4, 5, 6, 7.0, True)
    reports = [ModelReport(name="mini", meter=meter, status=status, kv_bytes=100)]
    body, _ = expose(meter, reports, accept="application/openmetrics-text")
    samples = [one for family in text_string_to_metric_families(body.decode()) for one in family.samples]
    named = [one for one in samples if one.exemplar is not None]
    assert {one.name for one in named} >= {"headrace_time_to_first_token_seconds_bucket"}
    for one in named:
        assert one.exemplar is not None and one.labels["le"] == "0.3"
        assert one.exemplar.labels == {"trace_id": "0af7651916cd43dd8448eb211c80319c"}
    text, kind = expose(meter, reports)
    assert kind.startswith("text/plain") and b"0af7651916cd43dd" not in text
