"""Whether a certified threshold keeps its bound on real traffic: a classifier of intents, resplit many times.

    python bench/gateway/certified.py DATA [--task banking77|clinc150] [--resplits 300]
    python bench/gateway/certified.py --simulate 10000

DATA is the folder of shared data. The texts of both tasks are domains that `embed` was not trained on. Heads
are trained on different halves of them. In each resplit of the rest, thresholds are chosen from the scores of
a tenth, one half of what is left certifies, the other half says how often fresh answers are wrong.

The theorem bounds the error rate of the population, not that of the fresh half, which scatters around it
and is worse where the certifying half was lucky. So both are counted: resplits in which the fresh half is
above the risk, and resplits in which all texts that the head was not trained on are. All resplits of a head
share its texts: they are no independent trials. The interval of the first count therefore resamples heads.

With --simulate all texts of each trial are drawn anew from a population whose error rate from every score on
is known, so that trials are independent and the population itself is counted, too."""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headrace import LLM
from headrace.gateway.certificate import certify, thresholds_of
from headrace.tasks.few_shot import fit

RISKS = (0.02, 0.05, 0.1)
CONFIDENCE = 0.95
TRAINED, SCORED = 1 / 2, 0.1  # parts of all texts, and of those that are left
HEADS = 5
POOL = 5_000  # texts of a simulated trial, as many as are left of those of both tasks
STRENGTH = 1e-4  # of the penalty: there are some 65 examples of each label


def read_texts(data: Path, task: str) -> tuple[list[str], np.ndarray]:
    """Texts and their labels."""
    if task == "clinc150":
        parts = json.loads(lzma.decompress((data / "intents/clinc150/data_small.json.xz").read_bytes()))
        pairs = [pair for name in ("train", "val", "test") for pair in parts[name]]
        return [text for text, _ in pairs], np.array([label for _, label in pairs])
    content = lzma.decompress((data / "intents/banking77/train.csv.xz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(content)))
    return [row["text"] for row in rows], np.array([row["category"] for row in rows])


class Resplit(NamedTuple):
    """What a certificate answers of a fresh half, what is wrong there, and in all that is left."""

    answered: float
    fresh: float
    all: float
    threshold: float


def resplit(score: np.ndarray, is_wrong: np.ndarray, risk: float, random: np.random.Generator) -> Resplit:
    """Certify a half of the texts, and look at the other one."""
    order = random.permutation(len(score))
    scored, known, fresh = np.split(order, [int(len(order) * SCORED), int(len(order) * (1 + SCORED) / 2)])
    thresholds = thresholds_of(score[scored], len(known), risk=risk, confidence=CONFIDENCE)
    found = certify(score[known], is_wrong[known], thresholds, risk=risk, confidence=CONFIDENCE)
    threshold = np.inf if found is None else found.threshold
    passed, every = score[fresh] >= threshold, score >= threshold
    return Resplit(
        answered=float(passed.mean()),
        fresh=float(is_wrong[fresh][passed].mean()) if passed.any() else 0.0,
        all=float(is_wrong[every].mean()) if every.any() else 0.0,
        threshold=threshold,
    )


def simulate(trials: int) -> None:
    """Scores are uniform from 0 to 1, and an answer is wrong with the probability `most` (1 - score)^2: so
    are `most` (1 - score)^2 / 3 of the answers from a score on."""
    print(f"{trials:,} trials, each with {POOL:,} texts of its own; two standard deviations of 5 %: ", end="")
    print(f"{2 * np.sqrt(0.05 * 0.95 / trials):.2%}")
    print("| most | risk | answered | population above the risk | fresh half above it | all texts |")
    print("|---|---|---|---|---|---|")
    random = np.random.default_rng(29)
    for most in (1.0, 0.25):
        for risk in RISKS:
            found: list[Resplit] = []
            for _ in range(trials):
                score = random.random(POOL)
                found.append(resplit(score, random.random(POOL) < most * (1 - score) ** 2, risk, random))
            above = [
                np.isfinite(one.threshold) and most * (1 - one.threshold) ** 2 / 3 > risk for one in found
            ]
            shares = [
                np.mean([one.answered for one in found]),
                np.mean(above),
                np.mean([one.fresh > risk for one in found]),
                np.mean([one.all > risk for one in found]),
            ]
            print(f"| {most} | {risk:.0%} | " + " | ".join(f"{float(one):.2%}" for one in shares) + " |")


def main() -> None:
    """Prints a row for each risk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--task", choices=("banking77", "clinc150"), default="banking77")
    parser.add_argument("--resplits", type=int, default=300)
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--texts", type=int, default=10_000, help="at most so many")
    parser.add_argument("--simulate", type=int, metavar="TRIALS")
    asked = parser.parse_args()
    if asked.simulate:
        simulate(asked.simulate)
        return
    if asked.data is None:
        parser.error("give the folder of shared data, or --simulate")
    texts, labels = read_texts(asked.data, asked.task)
    order = np.random.default_rng(1).permutation(len(texts))
    texts, labels = [texts[place] for place in order], labels[order]
    texts, labels = texts[: asked.texts], labels[: asked.texts]
    with LLM("embed") as llm:
        vectors = llm.embed(texts)
    random = np.random.default_rng(0)
    found: dict[float, list[list[Resplit]]] = {risk: [] for risk in RISKS}
    right: list[float] = []
    for _ in range(asked.heads):
        trained, rest = np.split(random.permutation(len(texts)), [int(len(texts) * TRAINED)])
        head = fit(vectors[trained], labels[trained].tolist(), strength=STRENGTH)
        answers = head.classify(vectors[rest])
        score = np.array([max(one.scores) for one in answers])
        is_wrong = np.array([one.label for one in answers]) != labels[rest]
        right.append(1 - is_wrong.mean())
        for risk in RISKS:
            runs = [resplit(score, is_wrong, risk, random) for _ in range(asked.resplits // asked.heads)]
            found[risk].append(runs)
    print(f"{asked.resplits} resplits of {asked.heads} heads; a head is right in {np.mean(right):.1%}")
    print(
        "| risk | answered by the small model | wrong among these | fresh half above the risk | "
        "95 % over heads | all texts |"
    )
    print("|---|---|---|---|---|---|")
    for risk in RISKS:
        runs = [one for head in found[risk] for one in head]
        broken = np.array([np.mean([one.fresh > risk for one in head]) for head in found[risk]])
        means = broken[random.integers(0, len(broken), (10_000, len(broken)))].mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        shown = (np.mean([one.answered for one in runs]), np.mean([one.fresh for one in runs]), broken.mean())
        beyond = np.mean([one.all > risk for one in runs])
        row = " | ".join(f"{float(value):.1%}" for value in shown)
        print(f"| {risk:.0%} | {row} | {low:.1%} to {high:.1%} | {float(beyond):.1%} |")


if __name__ == "__main__":
    main()
