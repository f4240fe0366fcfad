"""The flags of `headrace bench serve`, and the configuration they yield."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import typer

from headrace.bench.serve.arrivals import Form, Point
from headrace.bench.serve.length_distribution import parse_lengths
from headrace.bench.serve.metrics import Goals
from headrace.bench.serve.runner import DEFAULT_TIMEOUT_S, BenchConfig
from headrace.bench.serve.target import PATHS, Endpoint, parse_target
from headrace.bench.serve.trace import read_trace
from headrace.bench.serve.workload import (
    DatasetWorkload,
    SyntheticWorkload,
    TraceWorkload,
    Workload,
    read_prompts,
)
from headrace.cli.flags import Flag, takes
from headrace.errors import UsageError

DEFAULT_LEVELS: Mapping[Form, str] = {"concurrency": "1,2,4,8,16", "rate": "1", "speed": "1"}
SEED_BITS = 31  # of a seed that is drawn
DEFAULT_PROMPT, DEFAULT_OUTPUT = "256", "128"
DEFAULT_TTFT_MS, DEFAULT_TPOT_MS = 500.0, 100.0
MAX_USERS = 10_000
_LENGTHS = "N|LOW:HIGH|MEAN~DEV"


def _flag(name: str, type: Any, metavar: str | None, help: str) -> Flag:
    option = typer.Option("--" + name.replace("_", "-"), help=help, metavar=metavar, show_default=False)
    return Flag(name, type, option)


FLAGS = (
    _flag("model", str, "NAME", "the model [default: the first that the server lists]"),
    _flag("endpoint", str, "|".join(PATHS), "API endpoint [default: chat]"),
    Flag(
        "api_key",
        str,
        typer.Option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="API key of the server"),
    ),
    _flag("concurrency", str, "N,N...", f"concurrent users [default: {DEFAULT_LEVELS['concurrency']}]"),
    _flag("rate", str, "X,X...", "requests per second on average"),
    _flag("trace", Path, "FILE", "a trace to replay"),
    _flag("speed", str, "X,X...", "replay speed of the trace [default: 1]"),
    _flag("longest", int, "N", "skip the trace's requests with more tokens (prompt plus answer)"),
    _flag("prompts", Path, "FILE", "JSON lines with prompt, messages or turns, and optionally max_tokens"),
    _flag("prompt_tokens", str, _LENGTHS, f"length of synthetic prompts [default: {DEFAULT_PROMPT}]"),
    _flag("output_tokens", str, _LENGTHS, f"length of answers [default: {DEFAULT_OUTPUT}]"),
    _flag(
        "requests",
        int,
        "N",
        "requests per load point [default: 4 per user, at least 16; 100 with --rate; a whole trace]",
    ),
    _flag("warmup", int, "N", "warm-up requests before each load point [default: 4]"),
    _flag("seed", int, "N", "determines lengths, words and arrival times [default: another in each run]"),
    Flag(
        "ignore_eos",
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="generate answers of full length [default: yes, except with --prompts]",
            show_default=False,
        ),
    ),
    _flag(
        "body",
        str,
        "JSON",
        "fields merged into every request, such as '{\"temperature\": 1}'; null removes a field",
    ),
    _flag("timeout", float, "S", "timeout per request in seconds [default: 600]"),
    _flag("ttft_ms", float, "MS", f"goal: first token within [default: {DEFAULT_TTFT_MS:g}]"),
    _flag("tpot_ms", float, "MS", f"goal: time per output token within [default: {DEFAULT_TPOT_MS:g}]"),
    _flag("e2e_ms", float, "MS", "goal: end within [default: none]"),
)


def order_of(url: str, given: Mapping[str, Any]) -> BenchConfig:
    """The configuration from the flags. Raises UsageError for contradictory flags."""
    set_ = {name: value for name, value in given.items() if value is not None}
    endpoint = set_.get("endpoint", "chat")
    if endpoint not in PATHS:
        raise UsageError(f"--endpoint is {endpoint!r}, it can be {' or '.join(PATHS)}", param="endpoint")
    target = parse_target(url, cast("Endpoint", endpoint), set_.get("api_key"))
    workload = _workload(target.endpoint, set_)
    return BenchConfig(
        target=target,
        model=set_.get("model"),
        workload=workload,
        points=_points(set_),
        goals=Goals(
            ttft_s=set_.get("ttft_ms", DEFAULT_TTFT_MS) / 1000,
            tpot_s=set_.get("tpot_ms", DEFAULT_TPOT_MS) / 1000,
            e2e_s=set_["e2e_ms"] / 1000 if "e2e_ms" in set_ else None,
        ),
        ignore_eos=set_.get("ignore_eos", not isinstance(workload, DatasetWorkload)),
        body=_body(set_.get("body", "{}")),
        timeout_s=set_.get("timeout", DEFAULT_TIMEOUT_S),
        seed=set_.get("seed", secrets.randbits(SEED_BITS)),
        **{name: set_[name] for name in ("requests", "warmup") if name in set_},
    )


takes_load = takes("given", FLAGS, dict[str, Any])


def _workload(endpoint: Endpoint, given: Mapping[str, Any]) -> Workload:
    _refuse(given, "trace", "prompts", "prompt_tokens", "output_tokens")
    _refuse(given, "prompts", "prompt_tokens")
    if "longest" in given and "trace" not in given:
        raise UsageError("--longest needs a --trace, whose requests it filters", param="longest")
    output = parse_lengths(given.get("output_tokens", DEFAULT_OUTPUT), "output_tokens")
    if "trace" in given:
        path, longest = given["trace"], given.get("longest", math.inf)
        found = read_trace(path)
        kept = tuple(one for one in found if one.prompt_tokens + one.output_tokens <= longest)
        if not kept:
            raise UsageError(f"--trace {path} has no request of at most {longest:,} tokens", param="longest")
        return TraceWorkload(path, kept, left_out=len(found) - len(kept))
    if "prompts" in given:
        if output.form != "fixed":
            raise UsageError("--output-tokens with --prompts is one number", param="output_tokens")
        return read_prompts(given["prompts"], endpoint, output.first)
    return SyntheticWorkload(
        parse_lengths(given.get("prompt_tokens", DEFAULT_PROMPT), "prompt_tokens"), output
    )


def _points(given: Mapping[str, Any]) -> tuple[Point, ...]:
    _refuse(given, "rate", "concurrency")
    _refuse(given, "speed", "concurrency", "rate")
    if "speed" in given and "trace" not in given:
        raise UsageError("--speed needs a --trace", param="speed")
    form: Form = "rate" if "rate" in given else "concurrency"
    if "trace" in given and form not in given:
        form = "speed"
    return tuple(_point(form, text) for text in given.get(form, DEFAULT_LEVELS[form]).split(","))


def _point(form: Form, text: str) -> Point:
    try:
        level = float(text)
    except ValueError:
        level = math.nan
    if form == "concurrency" and (level != level // 1 or not 1 <= level <= MAX_USERS):
        raise UsageError(
            f"--concurrency has {text!r}: it takes whole numbers from 1 to {MAX_USERS:,}, such as "
            f"{DEFAULT_LEVELS[form]}",
            param=form,
        )
    if not 0 < level < math.inf:
        raise UsageError(f"--{form} has {text!r}: it takes numbers above 0, such as 0.5,1,2", param=form)
    return Point(form, level)


def _refuse(given: Mapping[str, Any], one: str, *others: str) -> None:
    for other in others:
        if one in given and other in given:
            flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
            raise UsageError(f"{flags[0]} and {flags[1]} exclude each other: give one", param=other)


def _body(text: str) -> dict[str, Any]:
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        message = f"--body is {text[:80]!r}: it takes a JSON object, such as '{{\"temperature\": 1}}'"
        raise UsageError(message, param="body")
    return cast("dict[str, Any]", found)
