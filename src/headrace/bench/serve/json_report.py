"""A report as JSON: results with units in their names, settings, machine, notes; never the API key."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from headrace.bench.serve.metrics import Figures
from headrace.bench.serve.recommendation import recommend
from headrace.bench.serve.runner import BenchConfig, Report
from headrace.bench.serve.workload import DatasetWorkload, SyntheticWorkload, TraceWorkload, Workload


def document(report: Report) -> dict[str, Any]:
    """One object; latencies in seconds, rates per second."""
    return {
        "bench": "serve",
        "version": report.version,
        "started_at": report.started_at,
        "settings": settings(report.order, report.model),
        "server": report.server,
        "machine": to_builtins(report.machine),
        "notes": list(report.notes),
        "recommendation": to_builtins(recommend(report.figures, report.order.goals)),
        "points": [_point(one) for one in report.figures],
    }


def settings(order: BenchConfig, model: str) -> dict[str, Any]:
    """The load settings, under the names of the command's flags."""
    return {
        "url": order.target.url,
        "endpoint": order.target.endpoint,
        "model": model,
        **_workload(order.workload),
        "ignore_eos": order.ignore_eos,
        "body": dict(order.body),
        "requests": order.requests,
        "warmup": order.warmup,
        "seed": order.seed,
        "timeout_s": order.timeout_s,
        "goals": to_builtins(order.goals),
    }


def _workload(workload: Workload) -> dict[str, str]:
    match workload:
        case SyntheticWorkload(prompt_tokens, output_tokens):
            return {"prompt_tokens": str(prompt_tokens), "output_tokens": str(output_tokens)}
        case DatasetWorkload(path):
            return {"prompts": path.name}
        case TraceWorkload(path):
            return {"trace": path.name}


def _point(figures: Figures) -> dict[str, Any]:
    found = to_builtins(figures)
    point = found.pop("point")
    return {"form": point["form"], "level": point["level"], **found}
