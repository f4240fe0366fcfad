"""`headrace adapt simulate`: the test of students, on students whose quality is known."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headrace.cli.terminal import JsonFlag, print_json
from headrace.errors import InvalidRequest, UsageError
from headrace.evals.calibrated_evidence import simulate_judged
from headrace.evals.paired_evidence import simulate

HELP = """Simulate students that are looked at after every example, and count which are ever proposed.

Without --better they are exactly as much worse as --margin allows: at most a part --alpha of them may be
proposed, however often one looks. With --better 0.03 they are right 3 points more often than the incumbent.
With --judge 0.75 a judge compares their answers that says what people say of 75 % of the pairs, and --labels
of these were compared by people, too.

\b
Examples:
  headrace adapt simulate --students 1000 --margin 0.02 --alpha 0.05
  headrace adapt simulate --students 1000 --margin 0.02 --alpha 0.05 --better 0.03 --json
  headrace adapt simulate --students 200 --margin 0.05 --judge 0.75 --labels 300
"""


def command(
    students: Annotated[int, typer.Option(min=1, max=100_000, help="Simulated students.")] = 1000,
    margin: Annotated[float, typer.Option(help="Share of answers by which a student may be worse.")] = 0.02,
    alpha: Annotated[float, typer.Option(help="Probability that a worse one is ever proposed.")] = 0.05,
    better: Annotated[
        float | None, typer.Option(help="How much more often they are right; default: -margin.")
    ] = None,
    disagreement: Annotated[
        float, typer.Option(help="Part of examples on which student and incumbent differ.")
    ] = 0.1,
    examples: Annotated[int, typer.Option(min=1, max=20_000, help="Examples of each student.")] = 5000,
    judge: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Part of the pairs in which a judge agrees with people."),
    ] = None,
    labels: Annotated[int, typer.Option(min=0, help="Pairs that people have compared, with --judge.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Other numbers are other students.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Print the part that was proposed; see HELP."""
    try:
        if judge is not None:
            found = simulate_judged(
                *(students, margin, alpha),
                agreement=judge,
                labels=labels,
                better=better,
                disagreement=disagreement,
                examples=examples,
                seed=seed,
            )
        else:
            found = simulate(
                students,
                margin,
                alpha,
                better=better,
                disagreement=disagreement,
                examples=examples,
                seed=seed,
            )
    except InvalidRequest as error:  # of a flag, not of a request
        raise UsageError(error.message) from None
    if json:
        print_json(msgspec.to_builtins(found))
        return
    after = ""
    if found.samples_median is not None:
        after = f", after {found.samples_median:,.0f} examples by the median"
    print(f"{found.proposed_share:.1%} of {students:,} students were proposed{after}")
