"""Models beside each other: what streams, single embeddings and a batch job lose to one another.

    python bench/serving/mixed_load.py [--seconds 10] [--streams 4] [--decodes 16] [--no-turns] [--json]
        [--only WORD...] [--no-drafts] [--rounds 1] [--split mini=0 embed=1 batch=1] [--batch-policy]

One server with three models in processes of their own: `mini` generates streams of the tier priority, `embed`
gets a flood of texts, `batch` (mini again) a batch job of the tier flex. First each kind of load runs alone,
then all together; then single embeddings of about 32 tokens come beside saturated decodes. `--no-turns` is
the same server whose models do not take turns over the cores. `--only decodes` runs the phases whose name has
that word, each `--rounds` times in alternation, of which the mean is shown; `--no-drafts` turns speculation
off, whose gain changes while it learns, and with it the tokens per second. `cpu_MODEL` is the processor time
of a model's process, `cpu_server` that of the server's, `cpu_client` that of this one, each as a part of all
cores. `--split` gives each model cores of its own, and no turns: the static split that turns are compared
with. With `--batch-policy` threads of models that wake up interrupt no other process, such as the server
(SCHED_BATCH). `work` is the sum of what each kind of load does as a part of what it does alone,
`work_per_cpu` the same for a second of processor time of all these processes: other work of the machine
disturbs it less.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import time
from collections.abc import Awaitable, Callable

import psutil
from load_client import fetch, percentile, post, processor_s, served, worker_processes

TOML = """[models.mini]
path = "mini"
[models.embed]
path = "embed"
[models.batch]
path = "mini"
"""
WITHOUT_TURNS = (
    "import sys, headrace.workers.spawn as spawn; spawn.turns_file = lambda: None; "
    "from headrace.cli.main import main; sys.argv[0] = 'headrace'; sys.exit(main())"
)
TEXT = "The sea was calm that evening, and the boats came home one after the other before it was dark. "
PROMPT = "Tell me of the sea. "
TOKENS = 128  # of a stream
FLOOD_CLIENTS, FLOOD_TEXTS, BATCH_CLIENTS = 2, 64, 4
TEXTS = re.compile(rb'"text":"((?:[^"\\]|\\.)*)"')  # of completions, streamed or not


class Load:
    """What one phase measured: gaps between tokens, tokens, embeddings and their seconds. `seen` has what
    each request was answered before, and `differing` counts answers that are another one now."""

    def __init__(self, seen: dict[tuple[str, int], bytes]) -> None:
        self.gaps_s: list[float] = []
        self.counts = {"stream": 0, "batch": 0, "embed": 0}
        self.single_s: list[float] = []
        self.seen, self.differing = seen, 0

    def answered(self, kind: str, index: int, body: bytearray) -> None:
        """An answer to one of the requests that are sent again and again."""
        content = (
            body[body.index(b"[") : body.rindex(b"]")] if kind == "embed" else b"".join(TEXTS.findall(body))
        )
        self.differing += self.seen.setdefault((kind, index), bytes(content)) != content


async def streams(port: int, load: Load, until_s: float, index: int) -> None:
    """One client whose streams follow each other."""
    while time.perf_counter() < until_s:
        body = completion("mini", "priority", index) | {"stream": True}
        exchange = await fetch(port, post("/v1/completions", body))
        check(exchange.status, exchange.body)
        times = [at for at, count in exchange.reads for _ in range(count)][1:]
        load.gaps_s += [after - before for before, after in itertools.pairwise(times) if after > before]
        load.counts["stream"] += TOKENS
        load.answered("stream", index, exchange.body)


async def batch(port: int, load: Load, until_s: float, index: int) -> None:
    """One client of the batch job."""
    while time.perf_counter() < until_s:
        exchange = await fetch(port, post("/v1/completions", completion("batch", "flex", index)))
        check(exchange.status, exchange.body)
        load.counts["batch"] += TOKENS
        load.answered("batch", index, exchange.body)


async def flood(port: int, load: Load, until_s: float, index: int) -> None:
    """One client that embeds many texts at once."""
    body = {"model": "embed", "input": [TEXT * 3 + str(index)] * FLOOD_TEXTS}
    while time.perf_counter() < until_s:
        exchange = await fetch(port, post("/v1/embeddings", body))
        check(exchange.status, exchange.body)
        load.counts["embed"] += FLOOD_TEXTS
        load.answered("embed", index, exchange.body)


async def singles(port: int, load: Load, until_s: float, index: int) -> None:
    """One short text after the other, with pauses."""
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        body = {"model": "embed", "input": TEXT + str(len(load.single_s))}
        exchange = await fetch(port, post("/v1/embeddings", body))
        check(exchange.status, exchange.body)
        load.single_s.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.03)


def completion(model: str, tier: str, index: int) -> dict[str, object]:
    """A body that generates TOKENS tokens."""
    return {
        "model": model,
        "prompt": f"{PROMPT} {index}",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "seed": index,
        "service_tier": tier,
    }


def check(status: int, body: bytearray) -> None:
    """The bench ends with the first error."""
    if status != 200:
        raise SystemExit(f"{status}: {bytes(body[:500])!r}")


Client = Callable[[int, Load, float, int], Awaitable[None]]


async def phase(
    port: int,
    seconds: float,
    clients: list[tuple[Client, int]],
    processes: dict[str, psutil.Process],
    seen: dict[tuple[str, int], bytes],
) -> tuple[Load, float, dict[str, float]]:
    """All clients for so long: what they measured, the seconds it took, and which part of all cores was used
    altogether and by each process."""
    load, began_s = Load(seen), time.perf_counter()
    psutil.cpu_percent()
    before = {name: processor_s(one) for name, one in processes.items()}
    until_s = began_s + seconds
    await asyncio.gather(*(one(port, load, until_s, i) for one, count in clients for i in range(count)))
    took_s, used = time.perf_counter() - began_s, {"cores_busy": psutil.cpu_percent() / 100}
    available_s = took_s * (psutil.cpu_count() or 1)
    for name, one in processes.items():
        used[f"cpu_{name}"] = (processor_s(one) - before[name]) / available_s
    return load, took_s, used


async def measure(port: int, pid: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """All phases, by name."""
    server = psutil.Process(pid)
    first = [post("/v1/completions", completion("mini", "default", 0))]
    first += [post("/v1/embeddings", {"model": "embed", "input": TEXT})]
    first += [post("/v1/completions", completion("batch", "default", 0))]
    workers = await worker_processes(port, server, dict(zip(("mini", "embed", "batch"), first, strict=True)))
    for name, cores in (entry.split("=") for entry in options.split):
        pin(workers[name], {int(core) for core in cores.split(",")})
    if options.batch_policy:
        for thread in (one.id for worker in workers.values() for one in worker.threads()):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
    processes = workers | {"server": server, "client": psutil.Process()}
    alone: list[tuple[Client, int]] = [(streams, options.streams)]
    others: list[tuple[Client, int]] = [(flood, FLOOD_CLIENTS), (batch, BATCH_CLIENTS)]
    phases: dict[str, list[tuple[Client, int]]] = {
        "warm up": [(streams, 1), (batch, 1), (flood, 1)],
        "streams alone": alone,
        "flood alone": [others[0]],
        "batch alone": [others[1]],
        "all together": [*alone, *others],
        "single embeddings alone": [(singles, 1)],
        "decodes alone": [(batch_of_standard, options.decodes)],
        "single embeddings beside decodes": [(singles, 1), (batch_of_standard, options.decodes)],
    }
    chosen = [name for name in phases if any(word in name for word in options.only) and name != "warm up"]
    seen: dict[tuple[str, int], bytes] = {}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in ["warm up", *chosen]}
    for name in ["warm up", *chosen * options.rounds]:
        seconds = 1.0 if name == "warm up" else options.seconds
        load, took_s, used = await phase(port, seconds, phases[name], processes, seen)
        measured[name].append(row(load, took_s) | used)
    means = {
        name: {key: sum(one[key] for one in rows) / len(rows) for key in rows[0]}
        for name, rows in measured.items()
    }
    for name, found in means.items():
        found["work"] = work(name, means)
        found["work_per_cpu"] = work_per_cpu(name, means)
    return means


ALONE = {"stream_per_s": "streams alone", "embed_per_s": "flood alone", "batch_per_s": "batch alone"}


def work(name: str, means: dict[str, dict[str, float]]) -> float:
    """What a phase does as the sum of parts of what each load does alone; 0 where those did not run."""
    if not all(alone in means for alone in ALONE.values()):
        return 0.0
    return sum(means[name][rate] / means[alone][rate] for rate, alone in ALONE.items())


def processor(found: dict[str, float]) -> float:
    """The processor time of all processes of a phase, as a part of all cores."""
    return sum(value for key, value in found.items() if key.startswith("cpu_"))


def work_per_cpu(name: str, means: dict[str, dict[str, float]]) -> float:
    """What a phase does for its processor time, as a part of what the loads alone do for theirs."""
    if not all(alone in means for alone in ALONE.values()) or not processor(means[name]):
        return 0.0
    needed = (
        means[name][rate] / means[alone][rate] * processor(means[alone]) for rate, alone in ALONE.items()
    )
    return sum(needed) / processor(means[name])


def pin(process: psutil.Process, cores: set[int]) -> None:
    """All threads of a process run on these cores."""
    for thread in process.threads():
        os.sched_setaffinity(thread.id, cores)


def row(load: Load, took_s: float) -> dict[str, float]:
    """The figures of one phase."""
    return {
        "gap_p50_ms": 1e3 * percentile(load.gaps_s, 0.5) if load.gaps_s else 0.0,
        "gap_p99_ms": 1e3 * percentile(load.gaps_s, 0.99) if load.gaps_s else 0.0,
        "single_p50_ms": 1e3 * percentile(load.single_s, 0.5) if load.single_s else 0.0,
        "single_p99_ms": 1e3 * percentile(load.single_s, 0.99) if load.single_s else 0.0,
        "differing": load.differing,
    } | {f"{kind}_per_s": count / took_s for kind, count in load.counts.items()}


async def batch_of_standard(port: int, load: Load, until_s: float, index: int) -> None:
    """One client that generates without a stream, of the default tier."""
    while time.perf_counter() < until_s:
        exchange = await fetch(port, post("/v1/completions", completion("mini", "default", index)))
        check(exchange.status, exchange.body)
        load.counts["stream"] += TOKENS


def run(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """All phases, by name, of a server of its own."""
    program = ["-c", WITHOUT_TURNS] if options.no_turns or options.split else ["-m", "headrace"]
    drafts = 'speculative = "off"\n' if options.no_drafts else ""
    with served(drafts + TOML, program) as (port, pid):
        return asyncio.run(measure(port, pid, options))


def flags() -> argparse.ArgumentParser:
    """What a run can be told."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--streams", type=int, default=4, help="interactive streams")
    parser.add_argument("--decodes", type=int, default=16, help="beside single embeddings")
    parser.add_argument("--no-turns", action="store_true", help="models do not take turns")
    parser.add_argument("--only", nargs="*", default=[""], help="phases with one of these in their name")
    parser.add_argument("--rounds", type=int, default=1, help="how often each phase runs")
    parser.add_argument("--no-drafts", action="store_true", help="generate without speculation")
    parser.add_argument("--split", nargs="*", default=[], help="cores of each model, as mini=0 embed=1")
    parser.add_argument("--batch-policy", action="store_true", help="threads of models preempt no others")
    parser.add_argument("--json", action="store_true")
    return parser


def main() -> None:
    """Start the server, measure, print."""
    options = flags().parse_args()
    found = run(options)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    columns = list(next(iter(found.values())))
    print("| load | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in found.items():
        print(f"| {name} | " + " | ".join(f"{row[column]:.2f}" for column in columns) + " |")


if __name__ == "__main__":
    main()
