"""Whether a certified threshold keeps its bound on real traffic: a classifier of intents, resplit many times.

    python bench/gateway/certified.py DATA [--task banking77|clinc150] [--resplits 300]

DATA is the folder of shared data. The texts of both tasks are domains that `embed` was not trained on. Heads
are trained on different halves of them. In each resplit of the rest, thresholds are chosen from the scores of
a tenth, one half of what is left certifies, the other half says how often fresh answers are wrong.

The theorem bounds the error rate of the population, not that of the fresh half, which scatters around it
and is worse where the certifying half was lucky. So both are counted: resplits in which the fresh half is
above the risk, and resplits in which all texts that the head was not trained on are. All resplits of a head
share its texts: they are no independent trials."""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
from pathlib import Path

import numpy as np

from headrace import LLM
from headrace.gateway.certificate import certify, thresholds_of
from headrace.tasks.few_shot import fit

RISKS = (0.02, 0.05, 0.1)
CONFIDENCE = 0.95
TRAINED, SCORED = 1 / 2, 0.1  # parts of all texts, and of those that are left
HEADS = 5
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


def main() -> None:
    """Prints a row for each risk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", choices=("banking77", "clinc150"), default="banking77")
    parser.add_argument("--resplits", type=int, default=300)
    parser.add_argument("--texts", type=int, default=10_000, help="at most so many")
    asked = parser.parse_args()
    texts, labels = read_texts(asked.data, asked.task)
    order = np.random.default_rng(1).permutation(len(texts))
    texts, labels = [texts[place] for place in order], labels[order]
    texts, labels = texts[: asked.texts], labels[: asked.texts]
    with LLM("embed") as llm:
        vectors = llm.embed(texts)
    random = np.random.default_rng(0)
    answered: dict[float, list[float]] = {risk: [] for risk in RISKS}
    errors: dict[float, list[float]] = {risk: [] for risk in RISKS}
    overall: dict[float, list[float]] = {risk: [] for risk in RISKS}
    right: list[float] = []
    for _ in range(HEADS):
        trained, rest = np.split(random.permutation(len(texts)), [int(len(texts) * TRAINED)])
        head = fit(vectors[trained], labels[trained].tolist(), strength=STRENGTH)
        found = head.classify(vectors[rest])
        score = np.array([max(one.scores) for one in found])
        is_wrong = np.array([one.label for one in found]) != labels[rest]
        right.append(1 - is_wrong.mean())
        for _ in range(asked.resplits // HEADS):
            order = random.permutation(len(rest))
            scored, known, fresh = np.split(
                order, [int(len(rest) * SCORED), int(len(rest) * (1 + SCORED) / 2)]
            )
            for risk in RISKS:
                thresholds = thresholds_of(score[scored], len(known), risk=risk, confidence=CONFIDENCE)
                certificate = certify(
                    score[known], is_wrong[known], thresholds, risk=risk, confidence=CONFIDENCE
                )
                passed = score[fresh] >= (np.inf if certificate is None else certificate.threshold)
                every = score >= (np.inf if certificate is None else certificate.threshold)
                overall[risk].append(is_wrong[every].mean() if every.any() else 0.0)
                answered[risk].append(passed.mean())
                errors[risk].append(is_wrong[fresh][passed].mean() if passed.any() else 0.0)
    print(f"{asked.resplits} resplits; the classifier is right in {np.mean(right):.1%}")
    print(
        "| risk | answered by the small model | wrong among these | fresh half above the risk | all texts |"
    )
    print("|---|---|---|---|---|")
    for risk in RISKS:
        broken = float(np.mean(np.array(errors[risk]) > risk))
        beyond = float(np.mean(np.array(overall[risk]) > risk))
        shown = (np.mean(answered[risk]), np.mean(errors[risk]), broken, beyond)
        print(f"| {risk:.0%} | " + " | ".join(f"{value:.1%}" for value in shown) + " |")


if __name__ == "__main__":
    main()
