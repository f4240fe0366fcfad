"""`headrace list`: the models on this machine."""

from __future__ import annotations

from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.weights.hub import list_local

HELP = """List the models on this machine: shipped ones, and those in the hub's cache.

\b
Example:
  headrace list --json
"""


def command(json: JsonFlag = False) -> None:
    """List them."""
    models = list_local()
    if json:
        print_json(
            [
                {
                    "name": model.name,
                    "source": model.source,
                    "folder": str(model.folder),
                    "size_bytes": model.size_bytes,
                    "revision": model.revision,
                }
                for model in models
            ]
        )
        return
    rows = [(m.name, m.source, size(m.size_bytes), (m.revision or "")[:12]) for m in models]
    print_table(rows, header=("NAME", "FROM", "SIZE", "REVISION"))
