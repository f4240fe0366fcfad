"""`headrace list`: the models on this machine."""

from __future__ import annotations

import textwrap

from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.loading.model_card import about
from headrace.weights.hub.resolver import list_local

ABOUT_WIDTH = 90

HELP = """List the models on this machine: bundled models, and those in the hub's cache.

`headrace show NAME --card` prints a model's card: purpose, quality, training data.

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
                    "about": about(model.folder),
                }
                for model in models
            ]
        )
        return
    rows = [
        (m.name, m.source, size(m.size_bytes), (m.revision or "")[:12], _cut(about(m.folder) or ""))
        for m in models
    ]
    print_table(rows, header=("NAME", "FROM", "SIZE", "REVISION", "ABOUT"))


def _cut(text: str) -> str:
    return textwrap.shorten(text, ABOUT_WIDTH, placeholder=" …")
