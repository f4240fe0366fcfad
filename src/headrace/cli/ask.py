"""`headrace ask`: a question over the datasets of headrace.toml and folders of documents, with citations."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace

from headrace.chat.messages import Message
from headrace.cli.ask_example import QUESTION, make_example
from headrace.cli.fetching import fetch
from headrace.cli.flags import takes_settings
from headrace.cli.nsql import answer_by_sql
from headrace.cli.terminal import JsonFlag, note, print_json
from headrace.config.settings import MODEL_SETTINGS, Settings
from headrace.data.engine import DataEngine
from headrace.errors import UsageError
from headrace.grammar.constraint import choice_constraint
from headrace.inference.handler import open_stream
from headrace.inference.keywords import new_call, new_id
from headrace.inference.requests import ChatRequest
from headrace.inference.result import collect
from headrace.llm import AsyncLLM
from headrace.search.citations import Citation, citations
from headrace.search.client import SearchClient
from headrace.search.index import TextSpan
from headrace.search.indexes import ASKED
from headrace.search.ingest import find_files
from headrace.search.searching import NamedHit

HELP = """Ask a question over the datasets of headrace.toml and folders of documents.

A model writes one SELECT, which can name only tables and columns that there are. Of documents the sentence
is quoted that is nearest to the question; a model that is named picks among the nearest. Each part comes with
its statement or its place. Documents are read again only where they have changed.

\b
Examples:
  headrace ask --example
  headrace ask "How many customers live in Oslo?" --docs handbook
  headrace ask -m Qwen/Qwen3-4B --docs handbook "Which plan has most customers, and what is in it?"
"""
PASSAGES = 4
MAX_SENTENCES = 12
"""That a model picks from."""
CHUNK_TOKENS = 64
MAX_ROWS = 20
MAX_SENTENCE = 600
Place = tuple[str, TextSpan]
"""A document, and characters of it."""
_SENTENCE = re.compile(r"[^\s#*>|-][^\n]*?(?:[.!?](?=\s|$)|(?=\n|$))")


class Asked(Struct, frozen=True, kw_only=True):
    """An answer: `rows` of a statement, and a sentence of a document. None where there is none to ask."""

    question: str
    sql: str | None
    rows: list[dict[str, object]] | None
    quote: str | None
    citations: list[Citation]


@takes_settings("datasets", "sql", "store", *MODEL_SETTINGS)
def command(
    question: Annotated[str | None, typer.Argument(metavar="QUESTION", help="The question.")] = None,
    docs: Annotated[
        list[Path] | None, typer.Option("--docs", metavar="PATH", help="A folder of documents, or a file.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model that answers.")] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Make a database and a folder here, and ask them.")
    ] = False,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Ask; see HELP."""
    if example:
        folder = make_example(Path("headrace-example"))
        note(f"{folder}/ has shop.sqlite3, handbook/ and headrace.toml: change them, and ask again there")
        settings = _example_settings(folder, settings)
        docs, question = [*(docs or ()), folder / "handbook"], question or QUESTION
    if not question:
        raise UsageError('no question: headrace ask "…", or headrace ask --example')
    if not settings.datasets and not docs:
        raise UsageError("nothing to ask: name [datasets] in headrace.toml, or folders with --docs")
    found = _asked(question, docs or (), model, settings)
    if json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)


def _example_settings(folder: Path, settings: Settings) -> Settings:
    """Those of the example, with all that is made beside it."""
    source = f"sqlite:{folder.absolute()}/shop.sqlite3#customers"
    return replace(settings, datasets={"customers": {"from": source}}, store=folder / "store.sqlite3")


def _asked(question: str, docs: Sequence[Path], model: str | None, settings: Settings) -> Asked:
    hits, sentences = _found(question, docs, settings) if docs else ([], {})
    engine = DataEngine(settings.datasets, settings.sql, settings.cache_folder) if settings.datasets else None
    try:
        sql, rows, quote = asyncio.run(_answered(question, sentences, model, engine))
    finally:
        if engine is not None:
            engine.close()
    checked = citations(quote or "", hits)
    return Asked(question=question, sql=sql, rows=rows, quote=quote, citations=checked)


def _found(
    question: str, docs: Sequence[Path], settings: Settings
) -> tuple[list[NamedHit], dict[str, Place]]:
    """The passages that fit a question best, and their sentences, the nearest first."""
    where = "\n".join(sorted(str(one.absolute()) for one in docs))
    name = f"{ASKED}{hashlib.blake2b(where.encode(), digest_size=8).hexdigest()}"
    with SearchClient(settings, lambda name: fetch(name, settings)) as client:
        report = client.ingest(find_files(docs), name, chunk_tokens=CHUNK_TOKENS)
        for message in report.failed.values():
            note(f"error: {message}")
        hits = client.search(question, [name], limit=PASSAGES)
        sentences = dict(_sentences(hits))
        texts = list(sentences)
        return hits, {texts[place]: sentences[texts[place]] for place in client.nearest(question, texts)}


async def _answered(
    question: str, sentences: Mapping[str, Place], model: str | None, engine: DataEngine | None
) -> tuple[str | None, list[dict[str, object]] | None, str | None]:
    """The statement, its rows, and the quotation."""
    sql = rows = None
    picked = next(iter(sentences), None)
    if engine is not None or (picked is not None and model is not None):
        async with AsyncLLM(model) as llm:
            if engine is not None:
                found = await answer_by_sql(question, (), 1, llm, engine)
                sql, rows = found.sql, msgspec.json.decode(found.answer.body, type=list[dict[str, object]])
            if picked is not None and model is not None:
                picked = await _picked(question, list(sentences)[:MAX_SENTENCES], llm)
    if picked is None:
        return sql, rows, None
    key, span = sentences[picked]
    return sql, rows, f'"{picked}" [{key}:{span.start}-{span.end}]'


async def _picked(question: str, sentences: Sequence[str], llm: AsyncLLM) -> str:
    """The sentence that a model takes."""
    text = "\n".join([*sentences, "", f"Quote the sentence that answers: {question}"])
    request = ChatRequest(
        id=new_id(),
        messages=(Message("user", text),),
        constraint=choice_constraint(sentences),
        sampling={"temperature": 0.0, "max_tokens": 512},
    )
    result = await collect(await open_stream(llm.handler, request, new_call({})))
    picked = result.prompts[0].choices[0].output.content
    return picked if picked in sentences else sentences[0]


def _sentences(hits: Sequence[NamedHit]) -> Iterator[tuple[str, Place]]:
    """The sentences of passages that can be quoted, the best passage's first, each with its place."""
    for one in hits:
        for found in _SENTENCE.finditer(one.hit.text):
            text, start = found[0].strip(), one.hit.span.start + found.start()
            if " " in text and len(text) <= MAX_SENTENCE and not set(text) & set('"“”[]'):
                yield text, (one.hit.key, TextSpan(start, start + len(text)))


def _print(found: Asked) -> None:
    if found.rows is not None:
        for row in found.rows[:MAX_ROWS]:
            print("  ".join(f"{name}: {value}" for name, value in row.items()))
        if len(found.rows) > MAX_ROWS:
            note(f"{len(found.rows) - MAX_ROWS:,} more rows: --json has all")
        print(f"[{found.sql}]")
    if found.quote is not None:
        print(found.quote)
