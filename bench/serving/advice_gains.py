"""Whether the advice of EXPLAIN comes true: each lever is pulled, and what it saved is compared with what was
predicted.

    python bench/serving/advice_gains.py mini
    python bench/serving/advice_gains.py Qwen/Qwen3-0.6B --tokens 48

Medians of --rounds requests. `saved` is seconds of the request; of a bigger batch seconds of the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import UNSET

from headrace.inference.completion import Completion
from headrace.llm import LLM
from headrace.telemetry.advice import SMALLER

PROMPT = "list the files of each folder by size and then by name, newest first; "
LEVERS = ("prefix_cache", "fewer_choices", "smaller_weights", "speculation_on", "bigger_batch")
REPEATING = "echo one two three four five six seven eight nine " * 12


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="mini")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--levers", default=",".join(LEVERS))
    return parser.parse_args()


def told(answer: Completion, lever: str) -> float:
    """The seconds that a lever is predicted to save; 0 where it is not advised."""
    assert answer.explain is not None
    detail: Mapping[str, Any] = {} if answer.explain.detail is UNSET else answer.explain.detail
    return next((one["saved_s"] for one in detail.get("advice", ()) if one["lever"] == lever), 0.0)


def took(answer: Completion) -> float:
    assert answer.explain is not None
    return answer.explain.measured_s


def compare(
    lever: str, without: Iterator[Completion], pulled: Iterator[Completion]
) -> tuple[str, float, float, float]:
    """Of pairs: the lever, seconds without it, those predicted to be saved, and those that were."""
    before: list[float] = []
    predicted: list[float] = []
    saved: list[float] = []
    for one, other in zip(without, pulled, strict=True):
        before.append(took(one))
        predicted.append(told(one, lever))
        saved.append(took(one) - took(other))
    return lever, statistics.median(before), statistics.median(predicted), statistics.median(saved)


def figures(options: argparse.Namespace) -> Iterator[tuple[str, float, float, float]]:
    count = options.rounds
    given: dict[str, Any] = {"max_tokens": options.tokens, "ignore_eos": True, "temperature": 0.0}
    given["explain"] = True
    short: dict[str, Any] = {"max_tokens": 2}

    def asked(llm: LLM, prompt: str = PROMPT, **more: Any) -> Iterator[Completion]:
        for _ in range(count):
            yield llm.generate(prompt, **{**given, **more})

    def cold(llm: LLM) -> Iterator[Completion]:
        for number in range(count):
            yield llm.generate(f"{number} {number} " + PROMPT * 12, **{**given, **short})

    levers = options.levers.split(",")
    with LLM(options.model, speculative="off") as plain:
        at_once(plain, 8, given)  # what steps of several rows take is learned
        if "prefix_cache" in levers:
            yield compare("prefix_cache", cold(plain), cold_again(cold, plain))
        if "fewer_choices" in levers:
            several: dict[str, Any] = {**given, "n": 8, "temperature": 1.0}
            many = (plain.generate(PROMPT, **several) for _ in range(count))
            yield compare("fewer_choices", many, asked(plain, temperature=1.0))
        if "smaller_weights" in levers:
            smaller: Any = SMALLER[plain.model.plan.weight_format]  # what is advised
            with LLM(options.model, speculative="off", quantization=smaller) as small:
                list(asked(small))
                yield compare("smaller_weights", asked(plain), asked(small))
        if "speculation_on" in levers:
            with LLM(options.model) as drafting:
                list(asked(drafting, REPEATING))
                yield compare("speculation_on", asked(plain, REPEATING), asked(drafting, REPEATING))
        if "bigger_batch" in levers:
            yield batched(plain, count, given)


def cold_again(cold: Any, llm: LLM) -> Iterator[Completion]:
    """The same prompts, each right after it was read first."""
    yield from cold(llm)


def at_once(llm: LLM, count: int, given: dict[str, Any]) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda number: llm.generate(f"{number} " + PROMPT, **given), range(count)))


def batched(llm: LLM, count: int, given: dict[str, Any]) -> tuple[str, float, float, float]:
    alone: list[float] = []
    predicted: list[float] = []
    saved: list[float] = []
    for _ in range(count):
        one = llm.generate(PROMPT, **given)
        began_s = time.perf_counter()
        at_once(llm, 8, given)
        each_s = (time.perf_counter() - began_s) / 8
        alone.append(took(one))
        predicted.append(told(one, "bigger_batch"))
        saved.append(took(one) - each_s)
    return "bigger_batch", *map(statistics.median, (alone, predicted, saved))  # type: ignore[return-value]


def main() -> None:
    options = arguments()
    print(f"| {options.model}: lever | without it | predicted to save | saved | predicted / saved |")
    print("|---|---|---|---|---|")
    for lever, before, predicted, saved in figures(options):
        ratio = f"{predicted / saved:.2f}" if saved > 0 else "-"
        cells = (f"{1000 * one:,.2f} ms" for one in (before, predicted, saved))
        print(f"| {lever.replace('_', ' ')} | {' | '.join(cells)} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
