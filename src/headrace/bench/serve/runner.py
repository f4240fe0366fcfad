"""Runs `headrace bench serve`: queries the server, runs each load point, and computes the report."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import psutil
from msgspec import Struct, field
from msgspec.structs import replace

from headrace import __version__
from headrace.bench.serve.arrivals import ArrivalProcess, Point, poisson_times, run_point
from headrace.bench.serve.http_client import Exchange
from headrace.bench.serve.metrics import Figures, Goals, figures
from headrace.bench.serve.result import Outcome, error_message, outcome_of
from headrace.bench.serve.synthetic_text import ASSUMED, SyntheticText, read_lexicon
from headrace.bench.serve.target import (
    KEY_REMEDY,
    KEY_STATUS,
    PATHS,
    ServerError,
    Target,
    call,
    chosen_model,
    served_models,
)
from headrace.bench.serve.workload import (
    DatasetWorkload,
    LoadRequest,
    SyntheticWorkload,
    TraceWorkload,
    Workload,
)
from headrace.errors import UsageError
from headrace.executors.machine_limits import cpu_name

MIN_REQUESTS = 16  # default per point
REQUESTS_PER_USER = 4
OPEN_REQUESTS = 100
DEFAULT_TIMEOUT_S = 600.0
LENGTH_TOLERANCE = 0.02
LATE_S = 0.05
CACHED_SHARE = 0.02
_WARM_UP = 10**6  # point index of warm-ups: no other point has the same words


class BenchConfig(Struct, frozen=True, kw_only=True):
    """What to measure.

    `requests` is per point; None: as many as the trace has, or enough for the load level. `warmup` requests
    precede each point and are not counted. `body` is merged into every request; None removes a field.
    """

    target: Target
    model: str | None
    workload: Workload
    points: tuple[Point, ...]
    goals: Goals
    requests: int | None = None
    warmup: int = 4
    seed: int = 0
    ignore_eos: bool = True
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        """Raises UsageError that names the flag."""
        for name, value, least in (("requests", self.requests, 1), ("warmup", self.warmup, 0)):
            if value is not None and value < least:
                raise UsageError(f"--{name} is {value}, it must be at least {least}", param=name)
        goals = {f"{name}_ms": getattr(self.goals, f"{name}_s") for name in ("ttft", "tpot", "e2e")}
        for name, seconds in {"timeout": self.timeout_s, **goals}.items():
            if seconds is not None and not 0 < seconds < math.inf:
                flag = name.replace("_", "-")
                raise UsageError(f"--{flag} must be above 0", param=name)

    def count(self, point: Point) -> int:
        """Number of requests of one point."""
        trace = len(self.workload.requests) if isinstance(self.workload, TraceWorkload) else None
        if point.form == "concurrency":
            count = self.requests or max(MIN_REQUESTS, REQUESTS_PER_USER * int(point.level))
        else:
            count = self.requests or trace or OPEN_REQUESTS
        return count if trace is None else min(count, trace)


class Machine(Struct, frozen=True):
    """The machine of the clients, and of the server if it is local."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    python: str


class Report(Struct, frozen=True, kw_only=True):
    """Results, method and machine. `notes` lists assumptions and warnings."""

    order: BenchConfig
    model: str
    server: str
    started_at: str
    version: str
    machine: Machine
    notes: tuple[str, ...]
    figures: tuple[Figures, ...]
    outcomes: tuple[tuple[Outcome, ...], ...]


class ProgressCallback(Protocol):
    """Called with the current phase, and with how many of its requests have ended."""

    def __call__(self, label: str, done: int, total: int) -> None: ...


async def bench_serve(
    order: BenchConfig, progress: ProgressCallback, each: Callable[[Figures], None] = lambda figures: None
) -> Report:
    """Run all points; `each` is called with a point's results as soon as they are available.

    Raises ServerError if the server cannot be reached or rejects the very first request.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    progress("querying the server", 0, 1)
    model = await chosen_model(order.target, order.model)
    counted = not isinstance(order.workload, DatasetWorkload)
    lexicon = await read_lexicon(order.target, model) if counted else ASSUMED
    first = await _first_request(order, model, lexicon)
    done: list[Figures] = []
    outcomes: list[tuple[Outcome, ...]] = []
    wanted_tokens = 0
    for number, point in enumerate(order.points):
        await _warm_up(order, model, lexicon, number, progress)
        asks = order.workload.asks(lexicon, order.count(point), seed=order.seed, point=number)
        ended = await _run(order, model, asks, point, str(point), progress)
        good = (ask for ask, one in zip(asks, ended, strict=True) if one.fault is None)
        wanted_tokens += sum(ask.wanted_tokens or 0 for ask in good)
        done.append(figures(point, ended, order.goals))
        outcomes.append(tuple(ended))
        each(done[-1])
    return Report(
        order=order,
        model=model,
        server=first.headers.get("server", ""),
        started_at=started_at,
        version=__version__,
        machine=this_machine(),
        notes=(
            *_assumptions(order, lexicon),
            *_remarks(done, wanted_tokens, new_words=isinstance(order.workload, SyntheticWorkload)),
        ),
        figures=tuple(done),
        outcomes=tuple(outcomes),
    )


def this_machine() -> Machine:
    """Properties of this machine."""
    return Machine(
        cpu_name(),
        os.cpu_count() or 1,
        psutil.virtual_memory().total,
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
    )


def request_body(order: BenchConfig, model: str, ask: LoadRequest) -> dict[str, Any]:
    """The JSON of one request: greedy, streamed, with usage, plus the configured changes."""
    body = ask.body(model, order.target.endpoint)
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"ignore_eos": True} if order.ignore_eos else {}
    body |= order.body
    return {name: value for name, value in body.items() if value is not None}


async def _run(
    order: BenchConfig,
    model: str,
    asks: Sequence[LoadRequest],
    point: Point,
    label: str,
    progress: ProgressCallback,
) -> list[Outcome]:
    times_s = [ask.at_s / point.level for ask in asks]
    if point.form == "rate":
        times_s = poisson_times(point.level, len(asks), order.seed)
    path = order.target.root + PATHS[order.target.endpoint]
    sendings = [
        ArrivalProcess(order.target.request(path, request_body(order, model, ask)), at_s)
        for ask, at_s in zip(asks, times_s, strict=True)
    ]
    return await run_point(
        order.target, point, sendings, order.timeout_s, lambda done: progress(label, done, len(asks))
    )


async def _warm_up(
    order: BenchConfig, model: str, lexicon: SyntheticText, number: int, progress: ProgressCallback
) -> None:
    asks = order.workload.asks(lexicon, order.warmup, seed=order.seed, point=_WARM_UP + 1 + number)
    if asks:
        together = Point("concurrency", len(asks))
        await _run(order, model, asks, together, "warming up", progress)


async def _first_request(order: BenchConfig, model: str, lexicon: SyntheticText) -> Exchange:
    """One short request, to report errors that would affect every request before the load begins."""
    workload = order.workload
    if isinstance(workload, TraceWorkload):  # the trace's first request may exceed the context
        workload = replace(workload, requests=(min(workload.requests, key=lambda one: one.prompt_tokens),))
    (ask,) = workload.asks(lexicon, 1, seed=order.seed, point=_WARM_UP)
    short = LoadRequest(ask.prompt, min(ask.output_tokens, 4))
    path = order.target.root + PATHS[order.target.endpoint]
    body = request_body(order, model, short)
    exchange = await call(order.target, path, body, timeout_s=order.timeout_s)
    if exchange.status != 200:
        said = f"{exchange.status}: {error_message(bytes(exchange.body))}"
        raise ServerError(
            f"{order.target.url} rejected the first request ({said}); {await _remedy(order, exchange)}"
        )
    fault = outcome_of(exchange, exchange.sent_s, exchange.sent_s).fault
    if fault is not None:
        said = f"{fault.kind}: {fault.message}"
        raise ServerError(f"{order.target.url} did not stream an answer to the first request ({said})")
    return exchange


async def _remedy(order: BenchConfig, exchange: Exchange) -> str:
    if exchange.status in KEY_STATUS:
        return KEY_REMEDY
    if b"ignore_eos" in exchange.body:
        return "leave the field out with --no-ignore-eos; answers then may end before --output-tokens"
    if exchange.status == 404:
        names = ", ".join((await served_models(order.target))[:20]) or "none that it lists"
        return f"its models are {names}: choose with --model, and mind the path of the URL"
    other = "completions" if order.target.endpoint == "chat" else "chat"
    return (
        "change the lengths (--prompt-tokens, --output-tokens, --longest) or the fields (--body), "
        f"or try --endpoint {other}"
    )


def _assumptions(order: BenchConfig, lexicon: SyntheticText) -> list[str]:
    notes: list[str] = []
    if isinstance(order.workload, DatasetWorkload):
        most = max(order.count(point) for point in order.points) + order.warmup
        if len(order.points) > 1 or order.warmup or most > len(order.workload.prompts):
            notes.append("prompts of the file are sent more than once: prefix caches will have hits")
    if isinstance(order.workload, TraceWorkload) and order.workload.left_out:
        left, kept = order.workload.left_out, len(order.workload.requests)
        notes.append(f"--longest left out {left:,} requests of the trace's {left + kept:,}")
    if not isinstance(order.workload, DatasetWorkload) and not lexicon.counted:
        notes.append(
            "the server has no /tokenize: synthetic prompts assume one token per word; "
            "prompt tokens in the report are the server's own count"
        )
    return notes


def _remarks(done: Sequence[Figures], wanted_tokens: int, *, new_words: bool) -> list[str]:
    notes: list[str] = []
    if any(one.succeeded and not one.tokens_reported for one in done):
        notes.append(
            "the server reported no usage for some answers: events with output were counted as tokens, and "
            "their prompt tokens are unknown"
        )
    elif wanted_tokens:
        found = sum(one.prompt_tokens for one in done)
        if abs(found / wanted_tokens - 1) > LENGTH_TOLERANCE:
            notes.append(
                f"prompts had {found:,} tokens in all by the server's count, {wanted_tokens:,} were wanted"
            )
    prompt_tokens, cached_tokens = (
        sum(getattr(one, name) or 0 for one in done) for name in ("prompt_tokens", "cached_tokens")
    )
    if new_words and cached_tokens > CACHED_SHARE * prompt_tokens:
        notes.append(
            f"the server had {cached_tokens / prompt_tokens:.0%} of the synthetic prompts in its cache: it "
            "has seen this seed before; leave out --seed for new prompts"
        )
    for one in done:
        if one.send_delay_s is not None and one.send_delay_s.p99 > LATE_S:
            notes.append(
                f"the client itself was late at {one.point}: one request in a hundred was sent "
                f"{1000 * one.send_delay_s.p99:.0f} ms or more after it was due, which its latencies include"
            )
    return notes
