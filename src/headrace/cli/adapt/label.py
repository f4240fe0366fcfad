"""`headrace adapt label`: a person compares answers, so that a judge's verdicts can be trusted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.adapt.actions import label, plain, to_label
from headrace.adapt.decisions.comparisons import MAX_LABELS, PREFERRED, Labeled, PairLabel, PairToLabel
from headrace.adapt.students.registry import person
from headrace.adapt.traffic.examples import ExampleStore
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, aside, note, print_json, print_json_lines, printable
from headrace.config.settings import Settings
from headrace.errors import UsageError

HELP = """Compare answers of a task's student with those of the large model, where a judge compares them, too.

In a terminal it shows a question and two answers, without saying whose they are: press 1 or 2 for the better
one, t for a tie, s to skip, q to stop. What you skip speaks against the student, so skip only what cannot be
told. Your labels say how far the judge can be trusted; without enough of them no student is proposed, and
`headrace adapt status` says how many are missing. --list prints the next pairs as lines of JSON instead, and
--from reads labels from such lines: {"pair": "s-1c9e-17", "preferred": "1"}, or "2", "tie", "skip".

\b
Examples:
  headrace adapt label t-3fa2
  headrace adapt label t-3fa2 --list > pairs.jsonl
  headrace adapt label t-3fa2 --from labels.jsonl
"""
KEYS = {"1": "1", "2": "2", "t": "tie", "tie": "tie", "s": "skip", "skip": "skip"}
MAX_FILE = 16 << 20


@takes_settings("store")
def command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id, beginning of an id, or name.")],
    labels: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Read labels, a line of JSON for each.")
    ] = None,
    list_pairs: Annotated[bool, typer.Option("--list", help="Print pairs to label instead.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LABELS, help="Pairs at most.")] = 50,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Label them; see HELP."""
    if labels is not None and list_pairs:
        raise UsageError("label takes --from or --list, not both")
    given = None if labels is None else _read(labels)
    with opened_store(settings) as store:
        if given is not None:
            found = _kept(store, task, given)
        else:
            pairs = to_label(store, task, limit)
            if list_pairs:
                print_json_lines([plain(one) for one in pairs])
                return
            if not sys.stdin.isatty():
                raise UsageError("label asks in a terminal: give --from FILE, or --list for pairs to label")
            found = _asked(store, task, pairs)
    if found is None:
        note("no label was given, or nothing is left to label")
        return
    if json:
        print_json(plain(found))
    else:
        print(printable(f"{found.kept:,} labels are kept: {found.judge.line}; the student is {found.state}"))


def _read(file: Path) -> list[PairLabel]:
    """The labels of a file; UsageError names the line that is none."""
    try:
        if file.stat().st_size > MAX_FILE:
            raise UsageError(f"{file} has more than {MAX_FILE:,} bytes: divide it")
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    found: list[PairLabel] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=PairLabel))
        except msgspec.DecodeError as error:
            shown = ", ".join(PREFERRED)
            raise UsageError(
                f'{file}, line {number}: {error}; a label is {{"pair": ..., "preferred": one of {shown}}}'
            ) from None
    if not found:
        raise UsageError(f"{file} has no labels")
    return found


def _kept(store: ExampleStore, task: str, given: Sequence[PairLabel]) -> Labeled:
    """Keep them, all or none."""
    with store.database.transaction():
        found = [
            label(store, task, given[start : start + MAX_LABELS], person())
            for start in range(0, len(given), MAX_LABELS)
        ]
    return msgspec.structs.replace(found[-1], kept=len(given))


def _asked(store: ExampleStore, task: str, pairs: Sequence[PairToLabel]) -> Labeled | None:
    """Each label is kept at once: what was done stays, however it ends."""
    found, kept = None, 0
    for number, one in enumerate(pairs, 1):
        aside(f"\n{number} of {len(pairs)}")
        for name, text in (("QUESTION", one.prompt), ("ANSWER 1", one.first), ("ANSWER 2", one.second)):
            print(f"\n{name}\n{_shown(text)}")
        said = _key()
        if said is None:
            break
        kept += 1
        found = label(store, task, [PairLabel(pair=one.pair, preferred=said)], person())  # type: ignore[arg-type]
    return None if found is None else msgspec.structs.replace(found, kept=kept)


def _key() -> str | None:
    """What a person says; None where that is enough for today."""
    while True:
        try:
            said = input("\n1, 2, t(ie), s(kip), q(uit)? ").strip().casefold()
        except (EOFError, KeyboardInterrupt):
            print()
            return None
        if said in ("q", "quit"):
            return None
        if said in KEYS:
            return KEYS[said]


def _shown(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))
