"""Check the speed goals on this machine, and profile the missed ones.

    python bench/goals.py A=config.json [B=config.json] [--runs 3] [--only int4 int8] [--out goals.md]

A and B are the shapes that the goals are defined for, Qwen2.5-0.5B and Llama-3.2-1B, with random weights.
Shares are relative to the machine's limits measured just before and after each run (`headrace bench
engine`). Takes some 20 minutes per shape on two cores; run it on an idle machine. Tables are printed as
Markdown, and written to the file of --out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from headrace.bench.engine import StepReport, bench_step
from headrace.bench.profile import StepProfile, bench_profile
from headrace.bench.summary import Summary
from headrace.bench.workload import Workload
from headrace.config.model_settings import Quantization
from headrace.errors import HeadraceError
from headrace.loading.options import EngineOptions

COLD_S = {"A": 0.6, "B": 1.0}
EXTRA_BYTES = 150e6  # allowed resident memory besides packed weights, keys and values
PARTS_SHOWN = 4
SMALL_PART = 0.03  # of a step: left out of the profiles


class Goal(Struct, frozen=True):
    """`bound` is the minimum of `value`, or the maximum if `less`; `phase` is the profiled step, or None."""

    name: str
    bound: float
    value: Callable[[StepReport], Summary]
    show: Callable[[float], str]
    phase: str | None = None
    less: bool = False

    def met(self, report: StepReport) -> bool:
        """By the median."""
        median = self.value(report).median
        return median <= self.bound if self.less else median >= self.bound


class Setting(Struct, frozen=True, kw_only=True):
    """A benchmark configuration, and the goals for it."""

    name: str
    group: str
    weights: Quantization
    prompt: int
    generate: int
    batch: int
    goals: tuple[Goal, ...]

    def workload(self, config: Path) -> Workload:
        """Its workload, with random weights for that config."""
        return Workload(
            model=None, config=config, prompt=self.prompt, generate=self.generate, batch=self.batch
        )


def percent(value: float) -> str:
    return f"{value:.0%}"


def prefill(bound: float) -> Goal:
    return Goal(
        "prefill, of the peak", bound, lambda report: report.prefill_share_of_peak, percent, "prefill"
    )


def decode(bound: float) -> Goal:
    return Goal(
        "decode, of bandwidth", bound, lambda report: report.decode_share_of_bandwidth, percent, "decode"
    )


def batched(bound: float) -> Goal:
    return Goal("decode, of the peak", bound, lambda report: report.decode_share_of_peak, percent, "decode")


def memory() -> Goal:
    def extra_bytes(report: StepReport) -> Summary:
        held = report.plan.weights_bytes + report.plan.kv_bytes
        found = report.figures["peak_rss_bytes"]
        return Summary(found.median - held, found.min - held, found.max - held)

    return Goal(
        "memory besides weights, K, V", EXTRA_BYTES, extra_bytes, lambda b: f"{b / 1e6:.0f} MB", less=True
    )


def cold(model: str) -> Goal:
    return Goal(
        "process start to first token",
        COLD_S[model],
        lambda report: report.figures["first_token_from_start_s"],
        lambda seconds: f"{seconds:.2f} s",
        less=True,
    )


def long_step(bound: float) -> Goal:
    def times(report: StepReport) -> Summary:
        plan, work = report.plan, report.workload
        per_token = plan.kv_bytes / (plan.page_count * plan.page_tokens)
        nbytes = plan.weight_bytes_per_token + per_token * (work.prompt + work.generate / 2)
        share = report.decode_share_of_bandwidth
        scale = nbytes / plan.weight_bytes_per_token
        return Summary(1 / (share.median * scale), 1 / (share.max * scale), 1 / (share.min * scale))

    return Goal(
        "decode step, relative to one read", bound, times, lambda x: f"{x:.2f}x", phase="decode", less=True
    )


def settings(model: str) -> Iterator[Setting]:
    """All settings, in the order of the table."""
    one = {"prompt": 512, "generate": 128, "batch": 1}
    yield Setting(
        name="int4, 512 + 128", group="int4", weights="int4", **one,
        goals=(prefill(0.75), decode(0.92), memory(), cold(model)),
    )  # fmt: skip
    yield Setting(
        name="int4, 2,048", group="int4", weights="int4", prompt=2048, generate=16, batch=1,
        goals=(prefill(0.75),),
    )  # fmt: skip
    for batch, bound in ((16, 0.60), (32, 0.68)):
        yield Setting(
            name=f"int4, batch {batch}, 128 + 128", group="int4", weights="int4", prompt=128,
            generate=128, batch=batch, goals=(batched(bound),),
        )  # fmt: skip
    others: tuple[tuple[Quantization, float], ...] = (("int8", 0.75), ("bf16", 0.65))
    for weights, bound in others:
        yield Setting(
            name=f"{weights}, 512 + 128", group=weights, weights=weights, **one,
            goals=(prefill(bound), decode(0.95)),
        )  # fmt: skip
    yield Setting(
        name="int4, 8,192 + 64", group="long", weights="int4", prompt=8192, generate=64, batch=1,
        goals=(long_step(1.15),),
    )  # fmt: skip


class Table:
    """A Markdown table that grows line by line, on the terminal and in a file."""

    def __init__(self, out: Path | None) -> None:
        self._out = out
        if out is not None:
            out.write_text("")

    def add(self, line: str = "") -> None:
        print(line, flush=True)
        if self._out is not None:
            with self._out.open("a") as file:
                file.write(line + "\n")


def report_model(model: str, config: Path, asked: argparse.Namespace, table: Table, console: Console) -> None:
    """Run all settings of one shape: a line per goal, then the profiles of missed goals."""
    table.add(f"\n## {model}\n")
    table.add("| run | goal | | measured (min to max) | tok/s | machine |")
    table.add("|---|---|---|---|---|---|")
    profiles: list[tuple[Setting, StepProfile]] = []
    with tempfile.TemporaryDirectory() as cache:
        for setting in settings(model):
            if setting.group not in asked.only:
                continue
            options = EngineOptions(quantization=setting.weights, cache_dir=Path(cache))
            with console.status("") as status:
                say = lambda text, of=f"{model}, {setting.name}": status.update(f"{of}: {text}")  # noqa: E731
                report = bench_step(setting.workload(config), options, runs=asked.runs, progress=say)
                for goal in setting.goals:
                    table.add(_line(setting, goal, report))
                profiles += _explained(setting, config, report, options, say)
    table.add("\nTime per instruction of the missed goals:\n")
    table.add("| step | ms | share | of its own limit |")
    table.add("|---|---|---|---|")
    for setting, profile in profiles:
        _add_profile(table, setting, profile)


def _line(setting: Setting, goal: Goal, report: StepReport) -> str:
    value, show = goal.value(report), goal.show
    speed = report.figures["decode_tokens_per_s" if goal.phase == "decode" else "prefill_tokens_per_s"].median
    limits = report.limits
    machine = f"{limits.read_bytes_per_s / 1e9:.1f} GB/s, {limits.best_int8_per_s / 1e12:.2f} T"
    return (
        f"| {setting.name} | {goal.name} {'≤' if goal.less else '≥'} {show(goal.bound)} "
        f"| {'met' if goal.met(report) else '**missed**'} "
        f"| {show(value.median)} ({show(value.min)} to {show(value.max)}) "
        f"| {f'{speed:,.0f}' if goal.phase else ''} | {machine}{_slow(report)} |"
    )


def _slow(report: StepReport) -> str:
    return f"; {report.slow_runs} slow runs repeated" if report.slow_runs else ""


def _explained(
    setting: Setting, config: Path, report: StepReport, options: EngineOptions, say: Callable[[str], None]
) -> Iterator[tuple[Setting, StepProfile]]:
    """The profiles of missed phases; for long prompts both, since attention has its own goal there."""
    missed = {goal.phase for goal in setting.goals if not goal.met(report)} - {None}
    wanted = {"prefill", "decode"} if setting.group == "long" else missed
    if wanted:
        _, found = bench_profile(setting.workload(config), options, repeats=7, progress=say)
        yield from ((setting, profile) for profile in found if profile.title.split(":")[0] in wanted)


def _add_profile(table: Table, setting: Setting, profile: StepProfile) -> None:
    table.add(f"| **{setting.name}; {profile.title}** | {1000 * profile.step_s:.2f} | | |")
    for number, part in enumerate(profile.parts):
        share = part.seconds / profile.step_s
        if number >= PARTS_SHOWN and share < SMALL_PART:
            continue
        limit = f"{part.least_s / part.seconds:.0%} of {part.bound}" if part.least_s else ""
        table.add(f"| {part.count} x {part.name} | {1000 * part.seconds:.2f} | {share:.0%} | {limit} |")


def main() -> int:
    asked = _parser().parse_args()
    table, console = Table(asked.out), Console(stderr=True)
    try:
        for model, config in asked.shapes:
            report_model(model, config, asked, table, console)
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="+", type=_shape, metavar="A=config.json")
    parser.add_argument("--runs", type=int, default=3)
    groups = ("int4", "int8", "bf16", "long")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups)
    parser.add_argument("--out", type=Path)
    return parser


def _shape(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in COLD_S or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not A=FILE or B=FILE, a config.json of that shape")
    return name, Path(path)


if __name__ == "__main__":
    sys.exit(main())
