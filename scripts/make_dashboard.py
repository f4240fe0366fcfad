"""Writes deploy/grafana/headrace.json, the Grafana dashboard. A test compares, and knows every metric in it.

python scripts/make_dashboard.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "headrace.json"
MODEL = '{model=~"$model"}'
WIDTH, HEIGHT = 8, 8  # of a panel; a row of Grafana is 24 wide


def rate(name: str, by: str = "model", labels: str = MODEL) -> str:
    return f"sum(rate({name}{labels}[$__rate_interval])) by ({by})"


def quantile(share: float, name: str) -> str:
    return f"histogram_quantile({share}, {rate(name + '_bucket', 'le')})"


def times(name: str) -> list[tuple[str, str]]:
    """Percentiles of a histogram of seconds."""
    return [(quantile(share, name), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


def ratio(part: str, whole: str) -> str:
    return f"{rate(part)} / {rate(whole)}"


ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "Users": [
        ("Time to first token", "s", times("headrace_time_to_first_token_seconds")),
        ("Time per output token", "s", times("headrace_time_per_output_token_seconds")),
        ("Time of a request", "s", times("headrace_request_seconds")),
        ("Time in the queue", "s", times("headrace_request_queue_seconds")),
        (
            "Requests per second",
            "reqps",
            [(rate("headrace_requests_total", "finish_reason"), "{{finish_reason}}")],
        ),
        ("HTTP replies per second", "reqps", [(rate("headrace_http_replies_total", "status"), "{{status}}")]),
    ],
    "Engine": [
        (
            "Tokens per second",
            "short",
            [
                (rate("headrace_prompt_tokens_total"), "{{model}} prompts"),
                (rate("headrace_generation_tokens_total"), "{{model}} answers"),
            ],
        ),
        (
            "Sequences",
            "short",
            [
                (f"sum(headrace_requests_running{MODEL}) by (model)", "{{model}} running"),
                (f"sum(headrace_requests_waiting{MODEL}) by (model)", "{{model}} waiting"),
            ],
        ),
        (
            "Tokens per step",
            "short",
            [(ratio("headrace_generation_tokens_total", "headrace_steps_total"), "{{model}}")],
        ),
        (
            "Drafted tokens that were right",
            "percentunit",
            [(ratio("headrace_accepted_tokens_total", "headrace_drafted_tokens_total"), "{{model}}")],
        ),
        ("Prefill", "s", times("headrace_request_prefill_seconds")),
        ("Decode", "s", times("headrace_request_decode_seconds")),
    ],
    "Memory": [
        ("KV cache", "bytes", [(f"sum(headrace_kv_bytes{MODEL}) by (model, state)", "{{model}} {{state}}")]),
        (
            "Prompt tokens from the prefix cache",
            "percentunit",
            [(ratio("headrace_prefix_cache_hits_total", "headrace_prefix_cache_queries_total"), "{{model}}")],
        ),
        (
            "Why no more were",
            "reqps",
            [(rate("headrace_prefix_cache_miss_total", "reason"), "{{reason}}")],
        ),
        ("Preemptions per second", "short", [(rate("headrace_preemptions_total"), "{{model}}")]),
    ],
    "Models": [
        (
            "State",
            "short",
            [(f"max(headrace_model_state{MODEL}) by (model, state) == 1", "{{model}} {{state}}")],
        ),
        ("Restarts of workers", "short", [(rate("headrace_worker_restarts_total"), "{{model}}")]),
        ("Errors per second", "reqps", [(rate("headrace_request_errors_total", "code"), "{{code}}")]),
        (
            "Refused before the engine",
            "reqps",
            [(rate("headrace_admission_rejected_total", "reason", ""), "{{reason}}")],
        ),
        (
            "Attempts at remote targets",
            "reqps",
            [(rate("headrace_target_attempts_total", "target, outcome", ""), "{{target}} {{outcome}}")],
        ),
        (
            "Response cache",
            "reqps",
            [(rate("headrace_response_cache_total", "outcome", ""), "{{outcome}}")],
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": title,
                "id": len(panels) + 1,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
            }
        )
        y += 1
        for place, (name, unit, queries) in enumerate(row):
            x = WIDTH * (place % 3)
            y += HEIGHT if place and x == 0 else 0
            position = {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}
            panels.append(panel(len(panels) + 1, name, unit, queries, position))
        y += HEIGHT
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "title": "Headrace",
        "uid": "headrace",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["headrace"],
        "templating": {
            "list": [
                {"type": "datasource", "name": "source", "label": "Source", "query": "prometheus"},
                {
                    "type": "query",
                    "name": "model",
                    "label": "Model",
                    "datasource": source,
                    "query": "label_values(headrace_model_state, model)",
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }


def panel(
    number: int, title: str, unit: str, queries: list[tuple[str, str]], position: dict[str, int]
) -> dict[str, Any]:
    """A chart; exemplars of histograms lead to their traces."""
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "type": "timeseries",
        "id": number,
        "title": title,
        "datasource": source,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "expr": expression,
                "legendFormat": legend,
                "datasource": source,
                "exemplar": "_bucket" in expression,
            }
            for place, (expression, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text())
