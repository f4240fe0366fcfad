"""`headrace adapt status`: what is collected."""

from __future__ import annotations

import time

from headrace.adapt.actions import plain, status_of
from headrace.cli.adapt.opened import opened_store
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json, printable
from headrace.config.adapt_settings import read_adapt
from headrace.config.settings import Settings

HELP = """Show what is collected, and what could be saved.

\b
Examples:
  headrace adapt status
  headrace adapt status --json
"""


@takes_settings("store")
def command(json: JsonFlag = False, *, settings: Settings) -> None:
    """Print it; see HELP."""
    adapt = read_adapt(settings.adapt)
    with opened_store(settings) as store:
        shown, database = status_of(store, adapt), store.database
    if json:
        print_json(plain(shown))
        return
    state = f"on, for {', '.join(adapt.keys)}" if adapt.enabled else "off: see the table [adapt]"
    print(f"collecting: {state}")
    if not database.exists:
        print(f"nothing was collected yet: there is no file {database.path}")
    print(f"{shown.examples:,} examples of {shown.tasks:,} tasks, which cost ${shown.usd:.4f}")
    for one in shown.students:
        print(printable(one.line))
        if one.judge is not None and one.judge.missing:
            print(f"  label answers of task {one.task}: headrace adapt label {one.task}")
    for one in shown.trainings:
        print(f"training of task {one.task}: {one.stage}; where it does not run, train the task again")
    for one in shown.alerts:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.at_s))
        print(printable(f"{at} {one.kind}: {one.text}"))
    for reason, count in sorted(shown.dropped.items()):
        print(f"not kept: {count:,} ({reason})")
