"""`headrace list`: the models on this machine."""

from __future__ import annotations

from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.config.providers import RemoteModelSettings, is_remote, read_remote_model
from headrace.config.sources import model_entries
from headrace.loading.model_card import about
from headrace.weights.hub.resolver import list_local

HELP = """List the models on this machine: bundled models, and those in the hub's cache; then the remote
models of [models] in headrace.toml.

On a terminal descriptions are cut to its width; in a pipe they are whole. `headrace show NAME --card` prints
a model's card: purpose, quality, training data.

\b
Examples:
  headrace list
  headrace list --json
"""


def command(json: JsonFlag = False) -> None:
    """List them."""
    models, remote = list_local(), _remote_models()
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
            + [_remote_row(name, about) for name, about in remote]
        )
        return
    rows = [
        (m.name, m.source, size(m.size_bytes), (m.revision or "")[:12], about(m.folder) or "") for m in models
    ]
    rows += [(name, "remote", "", "", about) for name, about in remote]
    header = ("NAME", "FROM", "SIZE", "REVISION", "ABOUT")
    if not any(model.revision for model in models):
        rows, header = [(*row[:3], row[4]) for row in rows], (*header[:3], header[4])
    print_table(rows, header=header, fit=True)


def _remote_row(name: str, about: str) -> dict[str, object]:
    return {
        "name": name,
        "source": "remote",
        "folder": None,
        "size_bytes": 0,
        "revision": None,
        "about": about,
    }


def _remote_models() -> list[tuple[str, str]]:
    """Names of remote models, and where they are answered."""
    return [
        (name, answered_by(read_remote_model(name, entry, "models"), name))
        for name, entry in model_entries().items()
        if is_remote(entry)
    ]


def answered_by(settings: RemoteModelSettings, name: str) -> str:
    """A remote model's provider and model, or its targets."""
    if settings.provider is not None:
        return f"{settings.model or name} of {settings.provider}"
    order = "the first that answers" if settings.route == "ordered" else f"{settings.route} route"
    return f"{order} of " + ", ".join(settings.targets)
