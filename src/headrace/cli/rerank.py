"""`headrace rerank`: documents by how well they answer a query."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli.flags import takes_settings
from headrace.cli.task_model import TASK_SETTINGS, ModelFlag, ServerFlag, TruncateFlag, task_model
from headrace.cli.terminal import JsonLinesFlag, print_json_lines, print_rows
from headrace.cli.text_input import FileFlag, read_texts
from headrace.config.settings import Settings
from headrace.tasks.rerank import DocumentScore

HELP = """Rank documents by how well they answer a query, best first.

Each DOCUMENT is an argument, a line of a file, or a line that is piped in. The output has a line for each:
its score, its index among those given (from 0), and its text; with --json {"index", "score", "text"}.

A cross-encoder reads query and document together, which ranks best. An embedder compares their vectors, a
decoder (Qwen3-Reranker, or any with --instruction) says yes or no. Without --model it is embed, which ships
with headrace and knows shell commands and SQL.

\b
Examples:
  headrace rerank "unpack an archive" "tar --extract --file a.tar" "du --human-readable"
  cat answers.txt | headrace rerank "How do I reset my password?" --top-n 3
  headrace rerank "reset my password" --file answers.txt --model cross-encoder/ms-marco-MiniLM-L6-v2
"""
RERANKER = "embed"


@takes_settings(*TASK_SETTINGS)
def command(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the documents should answer.")],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="[DOCUMENT]...", help="The documents.")
    ] = None,
    file: FileFlag = None,
    model: ModelFlag = None,
    top_n: Annotated[int | None, typer.Option("--top-n", min=1, help="Only the best N.", metavar="N")] = None,
    instruction: Annotated[
        str | None,
        typer.Option("--instruction", help="What a decoder is to judge by.", metavar="TEXT"),
    ] = None,
    truncate: TruncateFlag = False,
    server: ServerFlag = False,
    json: JsonLinesFlag = False,
    *,
    settings: Settings,
) -> None:
    """Rank them; see HELP."""
    given = read_texts(documents, file, "DOCUMENT")
    with task_model(settings, model, RERANKER, server=server) as one:
        ranked = one.ask(
            lambda llm: llm.rerank(query, given, top_n=top_n, truncate=truncate, instruction=instruction),
            "/v1/rerank",
            {
                "query": query,
                "documents": given,
                "top_n": top_n,
                "truncate": truncate,
                "instruction": instruction,
            },
            _scores,
        )
    if json:
        print_json_lines([{"index": it.index, "score": it.score, "text": given[it.index]} for it in ranked])
        return
    rows = [(f"{it.score:.4f}", str(it.index), given[it.index]) for it in ranked]
    print_rows(rows, header=("SCORE", "INDEX", "DOCUMENT"))


def _scores(reply: Any) -> list[DocumentScore]:
    return [DocumentScore(it["index"], it["relevance_score"]) for it in reply["results"]]
