"""Texts to vectors beside other engines, in alternation.

    python bench/encoders/compare.py FOLDER --peer-python VENV/bin/python --prepare
    python bench/encoders/compare.py FOLDER --peer-python VENV/bin/python [--rounds 3] [--many-rounds 1]

FOLDER has the models of make_models.py and `texts.json`, a list of texts of real lengths. `--prepare`
exports, quantizes and packs them and computes vectors in float32, so that what is measured then takes
minutes. All engines of a shape stay loaded; in each round each encodes the same texts, one after the
other: single texts in `--rounds`, all together in `--many-rounds`. The peers run in a Python of their own
with torch, onnxruntime, openvino, nncf and sentence-transformers, infinity in one more
(`--infinity-python`). Each cell is written to FOLDER/results.json once it is measured, and a run that begins
again goes on after it; `--seconds` ends it before a cell that it has no time for. `headrace-int8-avx2` is
ours with HEADRACE_ISA=avx2. The others cannot be limited so: ONNX Runtime has no switch, OpenVINO does not
run under oneDNN's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORKER = Path(__file__).parent / "worker.py"
OURS = ("headrace-int8", "headrace-bf16", "headrace-int8-avx2")
PEERS = ("onnxruntime-int8", "openvino-int8", "torch-bf16", "infinity-int8")
CASES = {"1 of 8 words": (1, 8), "1 of 180 words": (1, 180), "512 texts": (512, 0)}
SINGLE_RUNS, WARM_TEXTS = 20, 32


EXACT = "exact.npy"
Row = dict[str, Any]
"""Of one shape and case."""


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
            env=dict(os.environ, **({"HEADRACE_ISA": "avx2"} if engine.endswith("-avx2") else {})),
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


def measure(worker: Worker, texts: Sequence[str], vectors: Path) -> float:
    """Seconds of one encoding; of single texts the median of several."""
    runs = SINGLE_RUNS if len(texts) == 1 else 1
    return statistics.median(worker.encode(texts, vectors) for _ in range(runs))


def started(path: Path, asked: argparse.Namespace) -> list[Worker]:
    """The engines that can load the model of a folder."""
    workers: list[Worker] = []
    for name in [name for name in (*OURS, *PEERS) if name in asked.engines.split(",")]:
        python = Path(sys.executable) if name in OURS else asked.peer_python
        if name.startswith("infinity"):
            python = asked.infinity_python or python
        try:
            workers.append(Worker(python, name, path, asked.threads))
        except RuntimeError as error:
            print(f"{path.name}: left out: {error}", file=sys.stderr)
    return workers


def prepare(folder: Path, shape: str, asked: argparse.Namespace) -> None:
    """Everything that is made once for a model."""
    from headrace import LLM

    path, texts = folder / shape, json.loads((folder / "texts.json").read_text())
    (path / "calibration.json").write_text(json.dumps(texts[:64]))
    for worker in started(path, asked):
        print(f"{shape}: {worker.engine} is ready after {worker.ready_s:.0f} s", flush=True)
        worker.close()
    if not (path / EXACT).is_file():
        with LLM(path, quantization="keep", cache_dir=None) as llm:
            np.save(path / EXACT, llm.embed(texts_of("512 texts", texts)))


def compare(folder: Path, shape: str, asked: argparse.Namespace, rows: list[Row], end_s: float) -> None:
    """Adds the missing cells of one model to the rows: seconds by engine and round, cosine to float32."""
    path, texts = folder / shape, json.loads((folder / "texts.json").read_text())
    known = {(row["shape"], row["case"]) for row in rows}
    missing = [case for case in CASES if (shape, case) not in known]
    if not missing or time.monotonic() > end_s:
        return
    workers, exact = started(path, asked), np.load(path / EXACT)
    try:
        for case in missing:
            if time.monotonic() > end_s:
                return
            chosen = texts_of(case, texts)
            for worker in workers:  # once, so that all are warm
                worker.encode(chosen[:WARM_TEXTS])
            seconds: dict[str, list[float]] = {worker.engine: [] for worker in workers}
            for _ in range(asked.rounds if len(chosen) == 1 else asked.many_rounds):
                for worker in workers:
                    seconds[worker.engine].append(measure(worker, chosen, path / f"{worker.engine}.npy"))
            row: Row = {"shape": shape, "case": case, "seconds": seconds}
            if len(chosen) > 1:
                row["cosine"] = {name: cosine(path / f"{name}.npy", exact) for name in seconds}
            rows.append(row)
            (folder / "results.json").write_text(json.dumps(rows, indent=1))
            print(table_line(row), flush=True)
    finally:
        for worker in workers:
            worker.close()


def cosine(vectors: Path, exact: np.ndarray) -> float:
    """The mean cosine of an engine's vectors to those in float32."""
    return round(float((np.load(vectors) * exact).sum(1).mean()), 5)


def table_line(row: Row) -> str:
    """Medians, and the ratio of each engine's time to that of our int8."""
    seconds: dict[str, list[float]] = row["seconds"]
    ours = seconds[next(iter(seconds))]
    cells = []
    for name, times in seconds.items():
        ratio = statistics.median(other / own for other, own in zip(times, ours, strict=True))
        cells.append(f"{name} {statistics.median(times) * 1e3:.1f} ms ({ratio:.2f})")
    exact = f"; mean cosine to float32: {row['cosine']}" if "cosine" in row else ""
    return f"{row['shape']}, {row['case']}: " + " | ".join(cells) + exact


def main() -> None:
    """Measures all shapes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--infinity-python", type=Path)
    parser.add_argument("--shapes", default="minilm,bert,modernbert,xlmr")
    parser.add_argument("--engines", default=",".join((*OURS, *PEERS)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--many-rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prepare", action="store_true")
    asked = parser.parse_args()
    end_s, results = time.monotonic() + asked.seconds, asked.folder / "results.json"
    rows: list[Row] = json.loads(results.read_text()) if results.is_file() else []
    for shape in asked.shapes.split(","):
        if asked.prepare:
            prepare(asked.folder, shape, asked)
        else:
            compare(asked.folder, shape, asked, rows, end_s)
    if not asked.prepare:
        print("\n" + "\n".join(map(table_line, rows)))


if __name__ == "__main__":
    main()
