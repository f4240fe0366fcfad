"""The metrics log of a run, as a table (`measures.csv`) and as a plot (`measures.png`)."""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def note_measures(work: Path, step: int, measures: dict[str, float]) -> None:
    """Add a row; rows of this or a later step are left from an interrupted run and are removed."""
    path = work / "measures.csv"
    rows: list[dict[str, str]] = []
    if path.is_file():
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["step"]) < step]
    rows.append({"step": str(step)} | {name: f"{value:.4f}" for name, value in measures.items()})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[-1]), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    print(
        f"\nstep {step}: {', '.join(f'{k} {v:.3f}' for k, v in measures.items())}",
        file=sys.stderr,
        flush=True,
    )
    draw_curve(rows, work / "measures.png")


def draw_curve(rows: list[dict[str, str]], path: Path) -> None:
    """Losses on the left, shares of exactly right answers on the right."""
    figure, left = pyplot.subplots(figsize=(8, 5), layout="constrained")
    right = left.twinx()
    for name in rows[-1]:
        if name != "step":
            points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
            axis, style = (right, "--") if name.endswith("exact") else (left, "-")
            axis.plot(*zip(*points, strict=True), style, label=name)
    left.set_xlabel("step")
    left.set_ylabel("loss, nats per token; bits per byte (solid)")
    right.set_ylabel("answers exactly right (dashed)")
    right.set_ylim(0, 1)
    figure.legend(loc="outside upper center", ncol=4, fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
