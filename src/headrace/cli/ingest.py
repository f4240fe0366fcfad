"""`headrace ingest`: documents into an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag, note, print_json, printable, progress_bar
from headrace.config.extras import extra_module
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.errors import UsageError
from headrace.search.client import SearchClient
from headrace.search.ingest import IngestReport, Progress, find_files
from headrace.search.where import Value

HELP = """Put documents into an index, for `headrace search` and the server's /v1/search.

PATH is a file or a folder: text, Markdown and code; with headrace[search] HTML and PDF, with headrace[office]
Word, PowerPoint and Excel. Only what has changed since is read again; documents of a folder whose file is
gone are removed. What cannot be read is reported, and the others go on.

--dataset NAME takes the rows of a dataset instead, with the columns that [datasets.NAME.index] names: rows
that are new or have changed are read, those that are gone are removed.

Without --model it is embed, which ships with headrace. An index is always by one model.

\b
Examples:
  headrace ingest docs README.md --into docs
  headrace ingest reports --into reports --attribute year=2026 --attribute public=true
  headrace ingest --dataset tickets
"""


@takes_settings("store", "datasets", "sql", *MODEL_SETTINGS)
def command(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH...", help="Files and folders.")] = None,
    into: Annotated[
        str | None, typer.Option("--into", help="Name of the index, for files.", metavar="INDEX")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="Dataset with an index, in place of files.", metavar="NAME"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model that embeds the chunks.", metavar="MODEL")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option("--chunk", min=16, help="Tokens of a chunk, at most [default: 256].")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", help="What the documents have, for --where.", metavar="NAME=VALUE"),
    ] = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Ingest them; see HELP."""
    if dataset is not None:
        if paths or into or model or chunk or attribute:
            raise UsageError(
                f"--dataset is alone: what else there is to say stands in [datasets.{dataset}.index]"
            )
        into = dataset
    elif not paths or into is None:
        raise UsageError("name files or folders and --into INDEX, or --dataset NAME")
    files = None if dataset is not None else find_files(paths or [])
    given = dict(_attribute(one) for one in attribute or ())
    with (
        progress_bar("ingesting", unit="documents") as progress,
        SearchClient(settings, lambda name: fetch(name, settings)) as client,
    ):
        if files is None:
            report = _from_dataset(into, settings, client, progress)
        else:
            report = client.ingest(
                files, into, model=model, chunk_tokens=chunk, attributes=given, progress=progress
            )
    if json:
        print_json(asdict(report))
    else:
        _print(report, into)
    for message in report.failed.values():
        note(printable(f"error: {message}"))
    if report.failed:
        raise typer.Exit(1)


def _from_dataset(name: str, settings: Settings, client: SearchClient, progress: Progress) -> IngestReport:
    data = extra_module("data", "headrace.data.engine", "duckdb", "pyarrow")
    indexing = extra_module("data", "headrace.data.indexing", "duckdb", "pyarrow")
    engine = data.DataEngine(settings.datasets, settings.sql, settings.cache_folder)
    try:
        return indexing.index_dataset(engine, client, name, progress)
    finally:
        engine.close()


def _print(report: IngestReport, into: str) -> None:
    added, made = _count(report.added, "document"), _count(report.chunks, "chunk")
    print(
        f"{into}: {added} added, {report.changed:,} changed, {report.same:,} as they were,"
        f" {report.removed:,} removed; {made} made"
    )
    if report.skipped:
        verb = "is" if report.skipped == 1 else "are"
        note(f"{_count(report.skipped, 'file')} {verb} of no kind that is read")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _attribute(text: str) -> tuple[str, Value]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise UsageError(f"--attribute is {text[:60]!r}: write NAME=VALUE", param="attribute")
    if value in ("true", "false"):
        return name, value == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
