"""`headrace list`: the models on this machine."""

from __future__ import annotations

from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.loading.model_card import about
from headrace.weights.hub.resolver import list_local

HELP = """List the models on this machine: bundled models, and those in the hub's cache.

On a terminal descriptions are cut to its width; in a pipe they are whole. `headrace show NAME --card` prints
a model's card: purpose, quality, training data.

\b
Examples:
  headrace list
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
                    "about": about(model.folder),
                }
                for model in models
            ]
        )
        return
    rows = [
        (m.name, m.source, size(m.size_bytes), (m.revision or "")[:12], about(m.folder) or "") for m in models
    ]
    header = ("NAME", "FROM", "SIZE", "REVISION", "ABOUT")
    if not any(model.revision for model in models):
        rows, header = [(*row[:3], row[4]) for row in rows], (*header[:3], header[4])
    print_table(rows, header=header, fit=True)
