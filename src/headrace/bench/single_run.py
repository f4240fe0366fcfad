"""One benchmark run in its own process, so that load time and memory are those of a fresh start.

python -m headrace.bench.single_run JSON

JSON is a `RunConfig`; the reply is a line of JSON on stdout: `RunResult`, or an `error`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct, to_builtins

from headrace.bench.batch_run import run_together
from headrace.bench.workload import Workload, prepare_workload, random_prompts
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineRequest
from headrace.errors import HeadraceError
from headrace.loading.loader import start
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams

_FIRST_PROMPT = 32  # prompt tokens of the request that measures time from process start to first token


class RunConfig(Struct, frozen=True, kw_only=True):
    """`started_s` is the monotonic clock just before the process was started."""

    workload: Workload
    options: EngineOptions
    started_s: float

    def to_json(self) -> str:
        """As one line of JSON."""
        return msgspec.json.encode(self, enc_hook=_text_of_path).decode()


def _text_of_path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError


def _path_of_text(kind: type, text: object) -> Path:
    if kind is Path and isinstance(text, str):
        return Path(text)
    raise NotImplementedError


class RunResult(Struct, frozen=True, kw_only=True):
    """Speeds are totals over all sequences; `decode` is while all generate, and 0 for single tokens."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    ttft_s: float
    tpot_s: float
    load_s: float
    first_token_from_start_s: float
    peak_rss_bytes: int


def main() -> None:
    """Read the configuration, run it, print the result."""
    order = msgspec.json.decode(sys.argv[1], type=RunConfig, dec_hook=_path_of_text)
    try:
        print(json.dumps(to_builtins(measure(order))))
    except HeadraceError as error:
        print(json.dumps({"error": error.message, "param": error.param, "exit_code": error.exit_code}))


def measure(order: RunConfig) -> RunResult:
    """Load, then one short request, then the workload."""
    begin_s = time.monotonic()
    prepared = prepare_workload(order.workload, order.options)
    vocabulary = prepared.model.config.vocabulary
    model = start(prepared, order.options)
    try:
        load_s = time.monotonic() - begin_s
        first = random_prompts(order.workload, vocabulary)[0][:_FIRST_PROMPT]
        _times_s(model, [first], 1)
        first_token_s = time.monotonic() - order.started_s
        prompts = random_prompts(order.workload, vocabulary)
        times_s = _times_s(model, prompts, order.workload.generate)
    finally:
        model.close()
    return RunResult(
        load_s=load_s,
        first_token_from_start_s=first_token_s,
        peak_rss_bytes=_peak_rss_bytes(),
        **_speeds(order.workload, times_s),
    )


def _peak_rss_bytes() -> int:
    """Of this program only: getrusage includes the process before exec, which is as large as its parent."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _speeds(workload: Workload, times_s: list[list[float]]) -> dict[str, float]:
    firsts = [times[0] for times in times_s]
    began_s, ended_s = max(firsts), min(times[-1] for times in times_s)
    if ended_s <= began_s:  # some ended before others began: use all generated tokens over the whole time
        began_s, ended_s = min(firsts), max(times[-1] for times in times_s)
    window_s = ended_s - began_s
    counted = sum(sum(began_s < time_s <= ended_s for time_s in times) for times in times_s)
    steps = counted / len(times_s)
    return {
        "prefill_tokens_per_s": workload.prompt * workload.batch / max(firsts),
        "decode_tokens_per_s": counted / window_s if window_s > 0 else 0.0,
        "ttft_s": sum(firsts) / len(firsts),
        "tpot_s": window_s / steps if steps else 0.0,
    }


def _times_s(model: LoadedModel, prompts: list[tuple[int, ...]], generate: int) -> list[list[float]]:
    """Arrival times of each prompt's tokens, in seconds after submission. The prompts run concurrently,
    with greedy sampling and without the prefix cache.
    """
    params = SamplingParams(temperature=0, max_tokens=generate, ignore_eos=True)
    requests = [EngineRequest(prompt=prompt, params=params, cache=False) for prompt in prompts]
    times_s: list[list[float]] = [[] for _ in prompts]
    submitted_s = time.monotonic()
    for arrival in run_together(model.engine, requests):
        times_s[arrival.index] += [arrival.at_s - submitted_s] * len(arrival.tokens)
    return times_s


if __name__ == "__main__":
    main()
