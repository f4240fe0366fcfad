"""What models beside each other must show, in one table: some eight minutes, on a machine that is quiet.

    python bench/serving/must_show.py [--seconds 4] [--alternations 3] [--shares-seconds 40] [--only PART...]

The parts are `mixed` and `singles` (mixed_load.py), `shares` and `one_cpu` (shares.py), and `goodput`
(`headrace bench serve`). The load clients run on the cores of the server. Shares over ten minutes, as they
are asked for, are `--only shares --shares-seconds 600`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import mixed_load
import shares
from load_client import served

MAX_TURN_MS = 40.0  # the default of the setting
SPLIT = ["mini=0", "embed=1", "batch=1"]
SERVED_MINI = '[models.mini]\npath = "mini"\n'
SLO = 'slo = "ttft_ms=300,tpot_ms=40"\nslo_policy = "refuse"\n'
GOALS = ("--ttft-ms", "300", "--tpot-ms", "40", "--prompt-tokens", "64", "--output-tokens", "64")
OVERLOAD, OVERLOAD_S = 2.0, 6.0

Row = tuple[str, str, str, bool]
"""What is looked at, what is asked, what was measured, and whether that is met."""


def loads(options: argparse.Namespace, *given: str) -> dict[str, dict[str, float]]:
    """The phases of mixed_load.py, two rounds each."""
    flags = ["--seconds", str(options.seconds), "--rounds", "2", *given]
    return mixed_load.run(mixed_load.flags().parse_args(flags))


def mixed(options: argparse.Namespace) -> Iterator[Row]:
    """Streams, a flood of embeddings and a batch job: alone, together, and together on cores of their own.

    Servers with turns and with the split alternate; each figure is the median of the alternations.
    """
    only = ("--only", "streams alone", "flood alone", "batch alone", "together")
    pairs = [
        (loads(options, *only), loads(options, *only, "--split", *SPLIT)) for _ in range(options.alternations)
    ]
    runs = [one for pair in pairs for one in pair]
    best = {rate: median(one[name][rate] for one in runs) for rate, name in mixed_load.ALONE.items()}
    together = [tuple(one["all together"] for one in pair) for pair in pairs]
    turns, split = (
        {key: median(one[key] for one in side) for key in side[0]} for side in zip(*together, strict=True)
    )
    alone_ms = [pair[0]["streams alone"]["gap_p99_ms"] for pair in pairs]
    ratios = [pair[0]["gap_p99_ms"] / alone for pair, alone in zip(together, alone_ms, strict=True)]
    yield (
        "p99 between tokens / alone",
        "at most 1.3",
        f"{spread(ratios)} ({median(alone_ms):.1f} to {turns['gap_p99_ms']:.1f} ms)",
        median(ratios) <= 1.3,
    )
    yield "p99 of the static split", "", f"{split['gap_p99_ms']:.1f} ms", True
    works = [work_of(ours, best) / work_of(theirs, best) for ours, theirs in together]
    rates = "; ".join(f"{rate} {turns[rate]:,.0f} and {split[rate]:,.0f}" for rate in mixed_load.ALONE)
    yield "work / static split", "at least 0.95", f"{spread(works)} ({rates})", median(works) >= 0.95
    busy = turns["cores_busy"]
    yield "cores busy", "at least 90 %", f"{busy:.1%} (split {split['cores_busy']:.1%})", busy >= 0.9
    other = sum(one["differing"] for pair in pairs for one in pair[0].values())
    yield "answers of other bytes than alone", "none", f"{other:g}", other == 0


def work_of(found: dict[str, float], alone: dict[str, float]) -> float:
    """What a phase did, as the sum of the parts that each load does alone."""
    return sum(found[rate] / alone[rate] for rate in alone)


def spread(values: list[float]) -> str:
    """The median, with the least and the most."""
    return f"{median(values):.2f}, {min(values):.2f} to {max(values):.2f}"


def singles(options: argparse.Namespace) -> Iterator[Row]:
    """Single embeddings of about 32 tokens beside 16 decodes."""
    found = loads(options, "--only", "single", "decodes", "--no-drafts")
    alone, beside = found["single embeddings alone"], found["single embeddings beside decodes"]
    own, taken = alone["single_p99_ms"], beside["single_p99_ms"]
    bound = own + MAX_TURN_MS
    yield (
        "p99 of an embedding beside 16 decodes",
        f"at most {bound:.1f} ms",
        f"{taken:.1f} ms",
        taken <= bound,
    )
    before, after = found["decodes alone"]["stream_per_s"], beside["stream_per_s"]
    lost, share = 1 - after / before, beside["cpu_embed"]
    yield (
        "what decodes lose beside embeddings",
        f"at most {share + 0.03:.1%} (the encoder's share {share:.1%} + 3 %)",
        f"{lost:.1%} ({before:,.0f} to {after:,.0f} tokens/s)",
        lost <= share + 0.03,
    )


def apart(seconds: float, *flags: str) -> dict[str, Any]:
    """What shares.py finds; `--cpus` binds its whole process."""
    command = [sys.executable, shares.__file__, "--seconds", str(seconds), "--json", *flags]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def of_six(found: dict[str, Any], where: str) -> Iterator[Row]:
    """Shares and stalls of three decoders and three encoders."""
    parts = found["share_of_the_mean"].values()
    said = f"{min(parts):.2f} to {max(parts):.2f} of the mean in {found['seconds']:.0f} s"
    yield f"shares{where}", "0.9 to 1.1", said, min(parts) >= 0.9 and max(parts) <= 1.1
    least = min(found["ended"].values())
    yield f"requests of the slowest model{where}", "more than 0", f"{least:,}", least > 0
    rises = [
        after - one["before"][name] for one in found["stalls_ms"] for name, after in one["after"].items()
    ]
    shown = ", ".join(f"{rise:.0f}" for rise in sorted(rises, reverse=True))
    if not where:
        yield "rise of the longest gap after a kill", "at most 50 ms", f"{shown} ms", max(rises) <= 50


def of_shares(options: argparse.Namespace) -> Iterator[Row]:
    """Three decoders and three encoders, then each is killed."""
    yield from of_six(apart(options.shares_seconds), "")


def of_one_cpu(options: argparse.Namespace) -> Iterator[Row]:
    """The same on one processor."""
    yield from of_six(apart(options.shares_seconds / 2, "--cpus", "0"), " on one processor")


def bench(port: int, *flags: str) -> dict[str, float]:
    """The one point of `headrace bench serve`."""
    command = [sys.executable, "-m", "headrace", "bench", "serve", f"http://127.0.0.1:{port}", *GOALS]
    done = subprocess.run([*command, "--json", "-", *flags], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["points"][0]


def goodput(options: argparse.Namespace) -> Iterator[Row]:
    """Twice the load that the machine computes, with and without targets, in alternation."""
    found: dict[str, list[float]] = {"": [], SLO: []}
    rate = 0.0
    for _ in range(2):
        for slo in found:
            with served(SERVED_MINI + slo) as (port, _):
                if not rate:
                    capacity = bench(port, "--concurrency", "32", "--requests", "400")
                    rate = OVERLOAD * float(capacity["requests_per_s"])
                load = ("--rate", f"{rate:.0f}", "--requests", f"{rate * OVERLOAD_S:.0f}")
                found[slo].append(float(bench(port, *load)["goodput_per_s"]))
    ours, theirs = median(found[SLO]), median(found[""])
    said = f"{ours:.1f} and {theirs:.1f} good requests/s at {rate:.0f} requests/s"
    yield "goodput at overload / first come, first served", "at least 1.5", said, ours >= 1.5 * theirs


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "mixed": mixed,
    "singles": singles,
    "goodput": goodput,
    "shares": of_shares,
    "one_cpu": of_one_cpu,
}


def main() -> None:
    """Print the table, each part when it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each phase of mixed and singles")
    parser.add_argument("--alternations", type=int, default=3, help="of mixed with the static split")
    parser.add_argument("--shares-seconds", type=float, default=40.0, help="of shares; half on one processor")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts")
    options = parser.parse_args()
    began_s = time.monotonic()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| what | asked | measured | met |\n|---|---|---|---|")
    for name in options.only:
        for what, asked, measured, met in PARTS[name](options):
            print(f"| {what} | {asked} | {measured} | {'yes' if met else 'no'} |", flush=True)
    print(f"\n{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
