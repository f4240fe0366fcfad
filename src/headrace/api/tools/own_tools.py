"""The tools that a server has of its own: SQL over its datasets, and its models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from headrace.api.openai.chat_completions import complete_chat
from headrace.api.openai.embeddings import embed
from headrace.api.openai.models import model_cards
from headrace.api.statements import ServedModels, Statements
from headrace.config.datasets import read_datasets
from headrace.data.engine import DataEngine, Parameter
from headrace.data.job import SqlAnswer
from headrace.errors import ContextLengthExceeded, HeadraceError, InvalidRequest
from headrace.grammar.sql import quoted
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.isolation.child import WorkStop
from headrace.search.index import IndexMissing
from headrace.search.searching import MAX_INDEXES, MAX_TEXT, SearchRequest, search
from headrace.tools.tool import Arguments, Json, ToolResult, ToolSpec
from headrace.tools.toolbox import OwnTool, Run
from headrace.tools.visible import cut, visible

if TYPE_CHECKING:
    from headrace.api.service import Service

MAX_RESULT = 2**16
MAX_ROWS = 1000
MAX_ANSWER = 1024
"""Tokens of `chat` unless the call says otherwise; fewer where the context has no more."""
_TEXT: Json = {"type": "string", "minLength": 1, "maxLength": 2**17}
_DATASET: Json = {"type": "string", "minLength": 1, "maxLength": 63}


def own_tools(service: Service) -> tuple[OwnTool, ...]:
    """Those that the server's settings give it."""
    models = _ModelTools(service)
    found = [
        _tool("models", "Names of the models that this server has.", {}, models.names, reads_only=True),
        _tool(
            "chat",
            "Answer a question with a model of this server.",
            {
                "message": _TEXT,
                "model": {"type": "string", "maxLength": 200},
                "max_tokens": {"type": "integer", "minimum": 1, "maximum": 32768},
            },
            models.chat,
            required=["message"],
        ),
        _tool(
            "embed",
            "Vectors of texts, by an embedding model of this server.",
            {
                "texts": {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 64},
                "model": {"type": "string", "maxLength": 200},
            },
            models.embed,
            required=["texts"],
            reads_only=True,
        ),
    ]
    if read_datasets(service.settings.datasets):
        found += sql_tools(service.statements, lambda: service.runner)
    if service.indexes.may_have_any:
        found.append(
            _tool(
                "search",
                "Find the passages of indexed documents that answer a text best, by words and by meaning.",
                {
                    "text": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
                    "datasets": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_INDEXES},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 20},
                },
                _Search(service).found,
                required=["text"],
                reads_only=True,
            )
        )
    return tuple(found)


def sql_tools(statements: Statements, runner: Callable[[], ModelRunner] | None = None) -> tuple[OwnTool, ...]:
    """SQL over datasets, as the key of a call may read them; with `runner` models answer functions of SQL."""
    sql = _SqlTools(statements, runner)
    return (
        _tool("list_datasets", "Names of the datasets that SQL may read.", {}, sql.names, reads_only=True),
        _tool(
            "table_schema",
            "Names and types of the columns of a dataset.",
            {"dataset": _DATASET},
            sql.schema,
            required=["dataset"],
            reads_only=True,
        ),
        _tool(
            "sql",
            "Run one SELECT over the datasets (DuckDB's SQL); the rows as JSON.",
            {
                "sql": _TEXT,
                "parameters": {
                    "type": "array",
                    "items": {"type": ["string", "number", "boolean", "null"]},
                    "maxItems": 100,
                    "description": "Values of $1, $2, …",
                },
                "max_rows": {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
            },
            sql.rows,
            required=["sql"],
            reads_only=True,
        ),
    )


def _tool(
    name: str,
    description: str,
    properties: Json,
    run: Run,
    *,
    required: list[str] | None = None,
    reads_only: bool = False,
) -> OwnTool:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    spec = ToolSpec(
        name=name,
        description=description,
        parameters=schema,
        reads_only=reads_only,
        idempotent=True,  # none of them changes anything
    )
    return OwnTool(spec, run)


def _json_result(value: object) -> ToolResult:
    text, is_cut = cut(visible(msgspec.json.encode(value).decode()), MAX_RESULT)
    return ToolResult(text=text + (f"\n[cut to {MAX_RESULT:,} bytes]" if is_cut else ""), cut=is_cut)


class _SqlTools:
    """What the key of a call may read; errors of statements are results, so that a model can correct them."""

    def __init__(self, statements: Statements, runner: Callable[[], ModelRunner] | None) -> None:
        self._statements, self._runner = statements, runner

    async def names(self, arguments: Arguments, call: CallContext) -> ToolResult:
        engine = await self._statements.engine()
        role = engine.limits.of(call.account.name or None).role
        return _json_result([one.name for one in engine.catalogue if engine.catalogue.visible(one, role)])

    async def schema(self, arguments: Arguments, call: CallContext) -> ToolResult:
        try:
            answer = await self._answer(f"SELECT * FROM {quoted(arguments['dataset'])} LIMIT 0", call)
        except InvalidRequest as error:
            return ToolResult(text=error.message, is_error=True)
        return _json_result([{"name": one.name, "type": one.type} for one in answer.columns])

    async def rows(self, arguments: Arguments, call: CallContext) -> ToolResult:
        try:
            answer = await self._answer(
                arguments["sql"],
                call,
                arguments.get("max_rows", MAX_ROWS),
                arguments.get("parameters", ()),
            )
        except InvalidRequest as error:
            return ToolResult(text=visible(error.message), is_error=True)
        text, is_cut = cut(visible(answer.body.decode()), MAX_RESULT)
        note = f"\n[cut to {MAX_RESULT:,} bytes of {answer.rows:,} rows]" if is_cut else ""
        return ToolResult(text=text + note, cut=is_cut)

    async def _answer(
        self, sql: str, call: CallContext, rows: int | None = None, parameters: Sequence[Parameter] = ()
    ) -> SqlAnswer:
        models = None
        if self._runner is not None:
            loop, places = asyncio.get_running_loop(), self._statements.places
            models = ServedModels(self._runner(), call.account, loop, places)

        def run(engine: DataEngine, stop: WorkStop) -> SqlAnswer:
            key = call.account.name or None
            return engine.sql(
                sql, parameters, format="json", key=key, rows=rows, stop=stop, models=models, call=call
            )

        return await self._statements.run(run)


class _Search:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def found(self, arguments: Arguments, call: CallContext) -> ToolResult:
        service, names = self._service, arguments.get("datasets")
        request = SearchRequest(text=arguments["text"], limit=arguments.get("limit", 5))
        try:
            indexes = await service.run_in_thread(lambda: service.indexes.find_all(names))
            hits = await search(indexes, request, service.runner, call)
        except (InvalidRequest, IndexMissing) as error:
            return ToolResult(text=error.message, is_error=True)
        return _json_result(
            [
                {
                    "dataset": one.index,
                    "key": one.hit.key,
                    "characters": [one.hit.span.start, one.hit.span.end],
                    "text": one.hit.text,
                }
                for one in hits
            ]
        )


class _ModelTools:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def names(self, arguments: Arguments, call: CallContext) -> ToolResult:
        return _json_result([card.id for card in model_cards(self._service).data])

    async def chat(self, arguments: Arguments, call: CallContext) -> ToolResult:
        body = {
            "messages": [{"role": "user", "content": arguments["message"]}],
            "model": arguments.get("model"),
            "max_tokens": arguments.get("max_tokens", MAX_ANSWER),
        }
        reply = await self._asked(complete_chat, body, call)
        if isinstance(reply, ContextLengthExceeded) and "max_tokens" not in arguments:
            reply = await self._asked(complete_chat, body | {"max_tokens": None}, call)  # as many as fit
        if isinstance(reply, HeadraceError):
            return ToolResult(text=reply.message, is_error=True)
        return _answer_text(reply)

    async def embed(self, arguments: Arguments, call: CallContext) -> ToolResult:
        body = {"input": arguments["texts"], "model": arguments.get("model")}
        reply = await self._asked(embed, body, call)
        if isinstance(reply, HeadraceError):
            return ToolResult(text=reply.message, is_error=True)
        return _json_result([one["embedding"] for one in reply["data"]])

    async def _asked(self, operation: Any, body: Json, call: CallContext) -> Json | HeadraceError:
        given = {key: value for key, value in body.items() if value is not None}
        try:
            reply = await operation(msgspec.json.encode(given), call, self._service)
        except HeadraceError as error:
            return error
        return cast("Json", msgspec.json.decode(msgspec.json.encode(reply)))


def _answer_text(reply: Json) -> ToolResult:
    return ToolResult(text=cut(visible(reply["choices"][0]["message"]["content"] or ""), MAX_RESULT)[0])
