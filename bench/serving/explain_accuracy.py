"""How well EXPLAIN predicts: predicted / measured of each stage over a mix that the model has not seen.

    python bench/serving/explain_accuracy.py mini
    python bench/serving/explain_accuracy.py /path/to/model --lengths 8,64,512,2048,4096

Stages are prefill steps, decoding, and encoding; those shorter than 1 ms are left out, where the clock and
the scheduler of the operating system decide. `parts / whole` says how well the nodes of a tree sum to its
root.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from headrace.llm import AsyncLLM
from headrace.telemetry.explain_node import ExplainNode

MIN_S = 1e-3
KINDS = ("cold", "cached", "grammar", "repeating")
WORDS = (
    "list",
    "find",
    "file",
    "size",
    "folder",
    "sort",
    "copy",
    "move",
    "count",
    "word",
    "archive",
    "remove",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="mini")
    parser.add_argument("--lengths", default="8,64,256,700", help="tokens of prompts")
    parser.add_argument("--at-once", default="1,4,16")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--requests", type=int, default=32, help="of each kind and concurrency")
    parser.add_argument("--warm", type=int, default=16, help="requests before, alone and 8 at once")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--threads", type=int, default=None)
    return parser.parse_args()


def prompt(llm: AsyncLLM, random_: random.Random, tokens: int) -> tuple[int, ...]:
    text = " ".join(random_.choice(WORDS) for _ in range(2 * tokens))
    return tuple(llm.model.tokenizer.encode(text)[:tokens])


def requests(
    llm: AsyncLLM, kind: str, lengths: list[int], count: int, random_: random.Random
) -> Iterator[dict[str, Any]]:
    """Keywords of requests: `cold`, with a prefix that is in the cache, with a grammar, with speculation that
    comes true (the text repeats)."""
    shared = prompt(llm, random_, max(lengths) // 2)
    for number in range(count):
        tokens = lengths[number % len(lengths)]
        given: dict[str, Any] = {"prompt": prompt(llm, random_, tokens)}
        if kind == "cached":
            given["prompt"] = (*shared, *given["prompt"][: max(8, tokens // 2)])
        elif kind == "grammar":
            given["regex"] = "(ls -[a-z] [a-z]+ ){8}"
        elif kind == "repeating":
            given["prompt"] = (given["prompt"][:8] * (tokens // 8 + 1))[:tokens]
        yield given


def nodes(node: ExplainNode) -> Iterator[ExplainNode]:
    yield node
    for child in () if node.children is UNSET else node.children:
        yield from nodes(child)


def sum_error(root: ExplainNode) -> float:
    parts = sum(one.measured_s for one in (() if root.children is UNSET else root.children))
    return abs(parts / root.measured_s - 1)


async def measured(llm: AsyncLLM, asked: list[dict[str, Any]], at_once: int, most: int) -> list[ExplainNode]:
    gate = asyncio.Semaphore(at_once)

    async def one(given: dict[str, Any]) -> ExplainNode:
        async with gate:
            answer = await llm.generate(
                **given, max_tokens=most, temperature=0, ignore_eos=True, explain=True
            )
        assert answer.explain is not None
        return answer.explain

    return list(await asyncio.gather(*(one(given) for given in asked)))


async def run(options: argparse.Namespace) -> None:
    lengths = [int(one) for one in options.lengths.split(",")]
    given = {"threads": options.threads, "max_model_len": options.max_model_len}
    async with AsyncLLM(options.model, **{k: v for k, v in given.items() if v is not None}) as llm:
        warm = random.Random(1)
        for at_once in (1, 8):
            asked = list(requests(llm, "cold", lengths, options.warm, warm))
            await measured(llm, asked, at_once, options.max_tokens)
        random_, ratios, sums = (
            random.Random(2),
            defaultdict[tuple[str, str], list[float]](list),
            list[float](),
        )
        for kind in options.kinds.split(","):
            for at_once in map(int, options.at_once.split(",")):
                asked = list(requests(llm, kind, lengths, options.requests, random_))
                for tree in await measured(llm, asked, at_once, options.max_tokens):
                    sums.append(sum_error(tree))
                    for node in nodes(tree):
                        if node.predicted_s is not UNSET and node.measured_s >= MIN_S:
                            ratio = node.predicted_s / node.measured_s - 1
                            ratios[f"{kind}, {at_once}", node.name.split()[0]].append(ratio)
        report(options, ratios, sums)


def report(
    options: argparse.Namespace, ratios: dict[tuple[str, str], list[float]], sums: list[float]
) -> None:
    print(f"| {options.model}: requests, at once | stage | n | median error | 90 % below | bias |")
    print("|---|---|---|---|---|---|")
    stages = defaultdict[str, list[float]](list)
    for (mix, stage), found in ratios.items():
        stages[stage] += found
        print(row(mix, stage, found))
    for stage, found in stages.items():
        print(row("all", stage, found))
    print(row("all", "all", [one for found in stages.values() for one in found]))
    print(f"\nparts / whole: median error {statistics.median(sums):.2%}, most {max(sums):.2%}")


def row(mix: str, stage: str, found: list[float]) -> str:
    errors = sorted(map(abs, found))
    high = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return (
        f"| {mix} | {stage} | {len(found)} | {statistics.median(errors):.1%} | {high:.1%} "
        f"| {statistics.median(found):+.1%} |"
    )


if __name__ == "__main__":
    asyncio.run(run(arguments()))
