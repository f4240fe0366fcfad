"""`headrace search`: the chunks of documents that answer a text best."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, print_rows
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.search.client import SearchClient
from headrace.search.searching import NamedHit

HELP = """Search the indexes that `headrace ingest` has made: by words (BM25) and by meaning (vectors).

The output has a line for each chunk: its score, document, characters of the document, and text. --json says
also its rank by words and by vectors.

\b
Examples:
  headrace search "how do I rotate a key" --in docs
  headrace search "late refund" --where "year >= 2025 AND public" --limit 5 --json
"""


class SearchMode(StrEnum):
    """Parts of a search."""

    HYBRID = "hybrid"
    VECTOR = "vector"
    TEXT = "text"


@takes_settings("store", *MODEL_SETTINGS)
def command(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to search for.")],
    names: Annotated[
        list[str] | None, typer.Option("--in", help="Index to search [default: all].", metavar="INDEX")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Condition on attributes of documents.", metavar="CONDITION")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Chunks to find.")] = 10,
    rerank: Annotated[
        str | None,
        typer.Option("--rerank", help="Reranker that reads the 50 best.", metavar="MODEL"),
    ] = None,
    mode: Annotated[
        SearchMode, typer.Option("--mode", help="Search by words, by vectors, or both.")
    ] = SearchMode.HYBRID,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Search; see HELP."""
    with SearchClient(settings, lambda name: fetch(name, settings)) as client:
        found = client.search(text, names, where=where, limit=limit, rerank=rerank, mode=mode.value)
        for warning in client.warnings:
            note(f"warning: {warning}")
    if json:
        print_json(msgspec.to_builtins(found))
    elif not found:
        note("nothing was found")
    else:
        print_rows([_row(one) for one in found], header=("SCORE", "DOCUMENT", "CHARACTERS", "TEXT"))


def _row(found: NamedHit) -> tuple[str, str, str, str]:
    hit = found.hit
    return f"{hit.score:.4f}", hit.key, f"{hit.span.start}-{hit.span.end}", hit.text
