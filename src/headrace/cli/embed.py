"""`headrace embed`: vectors of texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.task_model import TASK_SETTINGS, ModelFlag, ServerFlag, in_parts, task_model
from headrace.cli.terminal import JsonLinesFlag, print_json_lines, print_table
from headrace.cli.text_input import FileFlag, read_texts
from headrace.config.settings import Settings

HELP = """Turn texts into vectors. Texts of related meaning have a large dot product.

Each TEXT is an argument, a line of a file, or a line that is piped in. On a terminal the first numbers of
each vector are shown; in a pipe each vector is a line of numbers with tabs between them, which numpy.loadtxt
reads. With --json each is a line {"index", "text", "embedding"}.

Without --model it is embed, which ships with headrace and knows shell commands and SQL. To rank texts for a
query use `headrace rerank`; to sort them into labels `headrace classify`.

\b
Examples:
  headrace embed "unpack an archive" "show disk usage"
  headrace embed --file questions.txt --json > vectors.jsonl
  headrace embed --model BAAI/bge-small-en-v1.5 --file questions.txt > vectors.tsv
"""
EMBEDDER = "embed"
SHOWN = 4  # numbers of a vector, on a terminal


@takes_settings(*TASK_SETTINGS)
def command(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="The texts.")] = None,
    file: FileFlag = None,
    model: ModelFlag = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            "--dimensions", min=1, help="Keep so many numbers, of models that were trained for that."
        ),
    ] = None,
    prompt_name: Annotated[
        str | None,
        typer.Option("--prompt-name", help="A prompt of the model, put before each text.", metavar="NAME"),
    ] = None,
    server: ServerFlag = False,
    json: JsonLinesFlag = False,
    *,
    settings: Settings,
) -> None:
    """Print them; see HELP."""
    wanted = read_texts(texts, file, "TEXT")
    with task_model(settings, model, EMBEDDER, server=server) as one:
        for first, part in in_parts(wanted):
            vectors = one.ask(
                lambda llm, part=part: cast(
                    "list[list[float]]",
                    llm.embed(part, dimensions=dimensions, prompt_name=prompt_name).tolist(),
                ),
                "/embed",
                {"inputs": part, "dimensions": dimensions, "prompt_name": prompt_name, "normalize": False},
                _vectors,
            )
            _print(first, part, vectors, json)


def _vectors(reply: Any) -> list[list[float]]:
    return reply


def _print(first: int, texts: Sequence[str], vectors: Sequence[Sequence[float]], json: bool) -> None:
    if json:
        pairs = zip(texts, vectors, strict=True)
        print_json_lines(
            [
                {"index": index, "text": text, "embedding": vector}
                for index, (text, vector) in enumerate(pairs, first)
            ]
        )
    elif sys.stdout.isatty():
        rows = [
            (f"{' '.join(f'{number:7.4f}' for number in vector[:SHOWN])} … {len(vector):,} numbers", text)
            for text, vector in zip(texts, vectors, strict=True)
        ]
        print_table(rows, header=("VECTOR", "TEXT"), fit=True)
    else:
        for vector in vectors:
            print("\t".join(f"{number:.9g}" for number in vector))
