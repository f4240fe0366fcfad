"""Texts to vectors beside other engines, in alternation.

    python bench/encoders/compare.py FOLDER --peer-python VENV/bin/python [--rounds 5]

FOLDER has the models of make_models.py and `texts.json`, a list of texts of real lengths. All engines stay
loaded; in each round each encodes the same texts, one after the other. The peers run in a Python of their own
with torch, onnxruntime, openvino, nncf and sentence-transformers. Writes FOLDER/results.json and prints the
tables.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WORKER = Path(__file__).parent / "worker.py"
OURS = ("headrace-int8", "headrace-bf16")
PEERS = ("onnxruntime-int8", "openvino-int8", "torch-bf16")
CASES = {"1 of 8 words": (1, 8), "1 of 180 words": (1, 180), "512 texts": (512, 0)}
SINGLE_RUNS = 20


class Worker:
    """An engine in a process of its own."""

    def __init__(self, python: Path, engine: str, folder: Path, threads: int) -> None:
        self.engine = engine
        self._process = subprocess.Popen(
            [str(python), str(WORKER), engine, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ready_s = self._answer()["ready_s"]

    def encode(self, texts: Sequence[str], vectors: Path | None = None) -> float:
        """Seconds."""
        order: dict[str, object] = {"texts": list(texts)}
        if vectors is not None:
            order["vectors"] = str(vectors)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.engine} ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def texts_of(case: str, texts: Sequence[str]) -> list[str]:
    """The case's texts."""
    count, words = CASES[case]
    if not words:
        return list(texts[:count])
    running = " ".join(texts).split()
    return [" ".join(running[:words])]


def measure(worker: Worker, texts: Sequence[str]) -> float:
    """Seconds of one encoding; of single texts the median of several."""
    runs = SINGLE_RUNS if len(texts) == 1 else 1
    return statistics.median(worker.encode(texts) for _ in range(runs))


def compare(folder: Path, shape: str, asked: argparse.Namespace) -> list[dict[str, object]]:
    """The rows of one model: seconds by engine, ratios to ours of each round, cosine to float32."""
    texts = json.loads((folder / "texts.json").read_text())
    path = folder / shape
    (path / "calibration.json").write_text(json.dumps(texts[:64]))
    engines = [name for name in (*OURS, *PEERS) if name in asked.engines.split(",")]
    workers: list[Worker] = []
    rows: list[dict[str, object]] = []
    try:
        for name in engines:
            python = Path(sys.executable) if name in OURS else asked.peer_python
            try:
                workers.append(Worker(python, name, path, asked.threads))
            except RuntimeError as error:
                print(f"{shape}: left out: {error}", file=sys.stderr)
        for case in CASES:
            chosen = texts_of(case, texts)
            for worker in workers:  # once, so that all are warm
                worker.encode(chosen, path / f"{worker.engine}.npy")
            seconds: dict[str, list[float]] = {worker.engine: [] for worker in workers}
            for _ in range(asked.rounds):
                for worker in workers:
                    seconds[worker.engine].append(measure(worker, chosen))
            rows.append({"shape": shape, "case": case, "seconds": seconds})
            print(table_line(rows[-1]), flush=True)
        rows[-1]["cosine"] = cosines(path, [worker.engine for worker in workers], chosen)
        print(f"{shape}: mean cosine to float32: {rows[-1]['cosine']}", flush=True)
    finally:
        for worker in workers:
            worker.close()
    return rows


def cosines(path: Path, engines: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """The mean cosine of each engine's vectors to those of our float32 reference."""
    from headrace import LLM

    with LLM(path, quantization="keep", cache_dir=None) as llm:
        exact = llm.embed(list(texts))
    found: dict[str, float] = {}
    for name in engines:
        vectors = np.load(path / f"{name}.npy")
        found[name] = round(float((vectors * exact).sum(1).mean()), 5)
    return found


def table_line(row: dict[str, object]) -> str:
    """Medians, and the ratio of each engine's time to that of our int8."""
    seconds: dict[str, list[float]] = row["seconds"]  # type: ignore[assignment]
    ours = seconds[next(iter(seconds))]
    cells = []
    for name, times in seconds.items():
        ratio = statistics.median(other / own for other, own in zip(times, ours, strict=True))
        cells.append(f"{name} {statistics.median(times) * 1e3:.1f} ms ({ratio:.2f})")
    return f"{row['shape']}, {row['case']}: " + " | ".join(cells)


def main() -> None:
    """Measures all shapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--shapes", default="minilm,bert,modernbert,xlmr")
    parser.add_argument("--engines", default=",".join((*OURS, *PEERS)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    for shape in asked.shapes.split(","):
        rows += compare(asked.folder, shape, asked)
        (asked.folder / "results.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
