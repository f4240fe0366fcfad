"""The first answer of a model without a process, beside what the start of a replica takes by itself.

    python bench/scale_from_zero.py [MODEL] [--cores 2] [--rounds 5]

Both take turns: a replica is started, then the cluster goes to zero, and a request wakes it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

from cluster_faults import Reply, asked, finish

from headrace.cluster.cluster_loader import ClusterLoader
from headrace.config.cluster_settings import ClusterSettings
from headrace.loading.options import EngineOptions
from headrace.workers.model_spec import ModelSpec
from headrace.workers.spawn import Spawner


def first_s(engine: Any, seed: int) -> float:
    """Seconds to the first token of a request."""
    began_s = time.perf_counter()
    reply = Reply(engine, asked(seed))
    finish([reply])
    return reply.times_s[0] - began_s


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="mini")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    spawner = Spawner()
    settings = ClusterSettings(replicas=1, min=0, max=1, idle_s=0.5)
    spec = ModelSpec(name="bench", model=args.model, options=EngineOptions(threads=args.cores))
    loader = ClusterLoader(spec, settings, spawner=spawner)
    loader.plan(4 << 30)
    model = loader.load(lambda done, total: None)
    engine: Any = model.engine
    over: list[float] = []
    starts: list[float] = []
    for number in range(args.rounds):
        warm_s = first_s(engine, number)
        while engine.replicas():
            time.sleep(0.05)
        began_s = time.perf_counter()
        process, _ = engine._start(lambda started: None)
        starts.append(time.perf_counter() - began_s)
        process.close()
        answer_s = first_s(engine, number)
        over.append(answer_s - starts[-1] - warm_s)
    model.close()
    spawner.close()
    print(
        json.dumps(
            {
                "start_s": round(statistics.median(starts), 4),
                "more_than_start_s": [round(one, 4) for one in over],
                "median_s": round(statistics.median(over), 4),
                "load": os.getloadavg()[0],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
