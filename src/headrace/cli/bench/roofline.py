"""`headrace bench roofline`: the limits of this machine."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict

from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, aside, print_json, print_table, size
from headrace.config.settings import Settings
from headrace.executors.machine_limits import DISTURBED, Limits, machine_limits
from headrace.loading.loader import usable_cores

HELP = """Measure read bandwidth and arithmetic peaks, with one thread and with all.

The best of several probes is kept until you pass --measure; after ten minutes it is measured again if other
programs used the machine meanwhile.

\b
Examples:
  headrace bench roofline
  headrace bench roofline --measure --json
"""


@takes_settings("threads", "cache_dir")
def command(
    measure: Annotated[bool, typer.Option("--measure", help="Measure again.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Measure; see HELP."""
    threads = settings.threads or usable_cores()
    counts = sorted({1, threads})
    found = [machine_limits(count, settings.cache_folder, measure=measure) for count in counts]
    if json:
        print_json([asdict(limits) for limits in found])
        return
    print(f"{found[0].cpu}, {found[0].isa}, measured {found[-1].measured_at}")
    header = ("THREADS", "READ", "MATRIX INT8", "MATRIX BF16", "INT8", "BF16", "F32")
    with_units = any(limits.matrix_int8_per_s for limits in found)
    rows = [header, *map(_row, found)]
    shown = [row if with_units else (*row[:2], *row[4:]) for row in rows]
    print_table(shown[1:], header=shown[0])
    if any(limits.disturbed for limits in found):
        aside(DISTURBED)


def _row(limits: Limits) -> tuple[str, ...]:
    matrix = limits.matrix_int8_per_s, limits.matrix_bf16_per_s
    peaks = (*matrix, limits.int8_per_s, limits.bf16_per_s, limits.f32_per_s)
    return (
        str(limits.threads),
        f"{size(limits.read_bytes_per_s)}/s",
        *(f"{peak / 1e9:,.0f} Gop/s" for peak in peaks),
    )
