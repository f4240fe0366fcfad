"""From which load and prompt sizes on disaggregated prefill wins: simulated, at equal numbers of replicas.

    python bench/cluster/disaggregation.py [--cluster FILE] [--replicas 4] [--requests 300]

Poisson arrivals at shares of what the replicas can do when all of them do both; answers have 50 to 250
tokens. Of the numbers of replicas for prompts the best is shown: that with the most requests within the
targets, four times the first token of a request alone and half a second, and --tpot-ms.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from workloads import at_load

from headrace.bench.serve.trace import TraceRequest
from headrace.simulate.cluster_file import read_cluster_file
from headrace.simulate.simulation import ReplicaShape, SimulationResult, SloTargets, simulate

PROMPTS = (500, 2000, 8000, 32_000)
LOADS = (0.25, 0.5, 0.75)


def trace_of(prompt: int, count: int) -> list[TraceRequest]:
    """One request per second in the mean; nothing is shared."""
    drawn, at_s, found = random.Random(prompt), 0.0, list[TraceRequest]()
    for _ in range(count):
        at_s += drawn.expovariate(1.0)
        tokens = drawn.randint(prompt // 2, prompt * 3 // 2)
        found.append(TraceRequest(at_s, tokens, drawn.randint(50, 250)))
    return found


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--cluster", type=Path)
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--requests", type=int, default=300)
    options.add_argument("--tpot-ms", type=float, default=25.0)
    given = options.parse_args()
    machines = {} if given.cluster is None else read_cluster_file(given.cluster).machines
    shape = next(iter(machines.values()), ReplicaShape())
    print("| prompt | load | TPOT p99, ms | TTFT mean, s | prefill replicas | read apart | apart wins |")
    print("|---|---|---|---|---|---|---|")
    for prompt in PROMPTS:
        trace = trace_of(prompt, given.requests)
        alone_s = simulate(trace[:1], shape, 1, "kv").ttft_s.mean
        targets = SloTargets(ttft_s=4 * alone_s + 0.5, tpot_s=given.tpot_ms / 1e3)
        for load in LOADS:
            arrivals, _ = at_load(trace, shape, given.replicas, load)
            ways: list[SimulationResult] = [
                simulate(arrivals, shape, given.replicas, "kv", prefill=readers, targets=targets)
                for readers in range(given.replicas)
            ]
            both, apart = ways[0], max(ways[1:], key=lambda one: (one.attained, -one.ttft_s.mean))
            print(
                f"| {prompt:,} | {load:.0%} "
                f"| {both.tpot_p99_s * 1e3:.1f} → {apart.tpot_p99_s * 1e3:.1f} "
                f"| {both.ttft_s.mean:.2f} → {apart.ttft_s.mean:.2f} "
                f"| {apart.prefill} of {apart.replicas} | {apart.apart:.0%} "
                f"| {'yes' if apart.attained > both.attained else 'no'}: within targets "
                f"{both.attained:.0%} → {apart.attained:.0%} |"
            )


if __name__ == "__main__":
    main()
