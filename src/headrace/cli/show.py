"""`headrace show`: what a model is, and the memory it will take."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.flags import MODEL_SETTINGS, takes_settings
from headrace.cli.loading import engine_options, fetch
from headrace.cli.terminal import JsonFlag, print_json, print_table, size
from headrace.config import Settings
from headrace.engine.load import Prepared, prepare

HELP = """Show what a model is: architecture, parameters, types, context, template, licence.

With --plan also the memory it will take with these settings, before anything is loaded.

\b
Examples:
  headrace show
  headrace show ./my-model --plan --weights int4 --context 4096
"""


@takes_settings(*MODEL_SETTINGS)
def command(
    model: Annotated[str | None, typer.Argument(help="Folder, OWNER/NAME or shipped model.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the memory plan.")] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Show it."""
    if model is not None:
        fetch(model, settings)
    prepared = prepare(model, engine_options(settings))
    with prepared.checkpoint:
        facts = _facts(prepared)
    if json:
        print_json(facts | ({"plan": _plan(prepared)} if plan else {}))
        return
    print_table([(name.replace("_", " "), _shown(value)) for name, value in facts.items()])
    if plan:
        print(
            f"\nmemory with {prepared.plan.context:,} tokens of context, {prepared.plan.page_count:,} pages"
        )
        names = ("weights_bytes", "kv_bytes", "state_bytes", "activation_bytes", "base_bytes", "total_bytes")
        rows = [(name.removesuffix("_bytes"), size(_plan(prepared)[name])) for name in names]
        print_table([("  " + name.replace("kv", "keys, values"), amount) for name, amount in rows])


def _facts(prepared: Prepared) -> dict[str, Any]:
    config = prepared.model.config
    tensors = prepared.checkpoint.tensors.values()
    dtypes = Counter[str]()
    for tensor in tensors:
        dtypes[tensor.dtype] += math.prod(tensor.shape)
    return {
        "name": prepared.name,
        "architecture": prepared.model.model_type,
        "parameters": sum(dtypes.values()),
        "types": dict(dtypes),
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "chat_template": prepared.template is not None,
        "licence": licence(prepared.folder),
        "folder": str(prepared.folder),
    }


def _plan(prepared: Prepared) -> dict[str, Any]:
    return asdict(prepared.plan) | {"total_bytes": prepared.plan.total_bytes}


def licence(folder: Path) -> str | None:
    """What the model card's front matter names as licence; None where there is none."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    with card.open(encoding="utf-8", errors="replace") as lines:
        if next(lines, "").strip() != "---":
            return None
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == "license":
                return value.strip().strip("'\"") or None
            if line.strip() == "---":
                return None
    return None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(count)}" for name, count in value.items())  # pyright: ignore[reportUnknownVariableType]
    return "unknown" if value is None else str(value)
