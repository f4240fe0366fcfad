"""Routing by policies with a measured cost model: cache hits of one big cache's, times beside round-robin.

    python bench/cluster/policies.py --cluster FILE [--replicas 4] [--load 0.5] [--requests 2000]

FILE is what `validate.py --write` has measured. Prompts are an eighth as long as in the trace, as is the
memory of each replica; the trace without shared prefixes is Azure's.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from workloads import AZURE, GROUP_TOKENS, at_load, chat, shrunk

from headrace.bench.serve.trace import TraceRequest, read_trace
from headrace.cluster.router import Policy
from headrace.simulate.cluster_file import read_cluster_file
from headrace.simulate.simulation import scaled_trace, simulate

KV_TOKENS = 1_536_000 // 8


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--cluster", type=Path, required=True)
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--load", type=float, default=0.5)
    options.add_argument("--requests", type=int, default=2000)
    given = options.parse_args()
    found = next(iter(read_cluster_file(given.cluster).machines.values()))
    shape = replace(found, kv_tokens=KV_TOKENS)
    azure = [replace(one, prompt_tokens=max(2, one.prompt_tokens // 8)) for one in read_trace(AZURE)]
    traces: dict[str, list[TraceRequest]] = {
        "Mooncake": scaled_trace(shrunk(16_000, 400), requests=given.requests),
        "chat": chat(given.requests),
        "Azure": scaled_trace(azure, requests=given.requests),
    }
    print("| trace | hit rate | of one cache | TTFT mean, s | of round-robin | of least-load |")
    print("|---|---|---|---|---|---|")
    for name, trace in traces.items():
        block_tokens = GROUP_TOKENS if any(one.blocks for one in trace) else None
        arrivals, _ = at_load(trace, shape, given.replicas, given.load)

        served = partial(simulate, arrivals, block_tokens=block_tokens)
        fast = {"step_s": 1e-9, "prefill_s": 1e-9, "row_s": 0.0, "pair_s": 0.0}
        one = served(replace(shape, **fast, kv_tokens=given.replicas * KV_TOKENS), 1, "kv")
        policies: tuple[Policy, ...] = ("kv", "round-robin", "least-load")
        kv, turns, least = (served(shape, given.replicas, policy) for policy in policies)
        of_one = kv.hit_rate / one.hit_rate if one.hit_rate else 1.0
        print(
            f"| {name} | {kv.hit_rate:.1%} | {of_one:.1%} | {kv.ttft_s.mean:.3f} "
            f"| {kv.ttft_s.mean / turns.ttft_s.mean:.2f} | {kv.ttft_s.mean / least.ttft_s.mean:.3f} |"
        )


if __name__ == "__main__":
    main()
