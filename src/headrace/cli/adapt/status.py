"""`headrace adapt status`: what is collected."""

from __future__ import annotations

import msgspec

from headrace.adapt.examples import ExampleStore
from headrace.adapt.schema import open_adapt
from headrace.adapt.shadow import prospects
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, print_json
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
    database = open_adapt(settings.store_file)
    try:
        store = ExampleStore(database)
        tasks = store.tasks()
        dropped = dict(store.dropped()) if database.exists else {}
        waiting = prospects(store) if database.exists else []
        shown = {
            "enabled": adapt.enabled,
            "keys": list(adapt.keys),
            "tasks": len(tasks),
            "examples": sum(one.examples for one in tasks),
            "usd": sum(one.nano_usd for one in tasks) / 1e9,
            "dropped": dropped,
            "students": [msgspec.to_builtins(one) for one in waiting],
        }
    finally:
        database.close()
    if json:
        print_json(shown)
        return
    state = f"on, for {', '.join(adapt.keys)}" if adapt.enabled else "off: see the table [adapt]"
    print(f"collecting: {state}")
    print(f"{shown['examples']:,} examples of {shown['tasks']:,} tasks, which cost ${shown['usd']:.4f}")
    for one in waiting:
        print(one.line)
    for reason, count in sorted(dropped.items()):
        print(f"not kept: {count:,} ({reason})")
