"""GET /openapi.json and /docs: what every endpoint takes and every status it may answer with."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace import __version__
from headrace.api.anthropic.errors import ANTHROPIC_STATUSES, MESSAGES_PATH, AnthropicError
from headrace.api.anthropic.schema import (
    STREAM_EVENTS,
    AnthropicMessage,
    AnthropicModel,
    AnthropicModelList,
    AnthropicTokenCount,
    MessageBatch,
    MessageBatchList,
)
from headrace.api.http.errors import ErrorBody
from headrace.api.http.middleware import OPEN_PATHS
from headrace.api.ollama.errors import OllamaError
from headrace.api.ollama.schema import OLLAMA_REPLIES
from headrace.api.openai import schema as wire
from headrace.api.openai.responses.schema import (
    DeletedResponse,
    ResponseEvent,
    ResponseInputTokens,
    ResponseItemList,
    ResponseObject,
)

router = APIRouter(include_in_schema=False)

Json = dict[str, Any]

SCHEMA_OF = "#/components/schemas/{name}"


class ChatReply(wire.Reply, frozen=True):
    """A whole chat completion."""

    choices: list[wire.ChatChoice]  # type: ignore[assignment]  # a schema has no place for the union


class TextReply(wire.Reply, frozen=True):
    """A whole completion."""

    choices: list[wire.TextChoice]  # type: ignore[assignment]


class ChatChunk(wire.CompletionChunkBody, frozen=True):
    """A streamed part of a chat completion."""

    choices: list[wire.ChatChunkChoice]  # type: ignore[assignment]


class TextChunk(wire.CompletionChunkBody, frozen=True):
    """A streamed part of a completion."""

    choices: list[wire.TextChoice]  # type: ignore[assignment]


BODIES = (
    *(ErrorBody, wire.HealthBody, wire.ModelCard, wire.ModelList, wire.ReadyBody),
    *(ChatReply, TextReply, ChatChunk, TextChunk),
    *(OllamaError, *OLLAMA_REPLIES),
    *(AnthropicError, AnthropicMessage, AnthropicModel, AnthropicModelList, AnthropicTokenCount),
    *(MessageBatch, MessageBatchList),
    *STREAM_EVENTS,
    *(ResponseObject, ResponseEvent, DeletedResponse, ResponseInputTokens, ResponseItemList),
    *(wire.FileObject, wire.FileList, wire.FileDeleted, wire.BatchObject, wire.BatchList),
    *(wire.Tokenized, wire.PromptText, wire.EmbeddingList),
)
# Bodies of errors by the beginning of their paths, as SHAPES makes them.
ERRORS: Mapping[str, type[msgspec.Struct]] = {"/api/": OllamaError, MESSAGES_PATH: AnthropicError}
ANY_CALL: Mapping[int, str] = {
    400: "The request is not valid; the error names what is not",
    403: "The Host or Origin header is not one of this server's",
    431: "The headers are larger than 64 KiB",
    500: "The server failed; its log has the details",
    503: "Loading, shutting down, overloaded or stopped; Retry-After says when to come back",
}
WITH_KEY: Mapping[int, str] = {401: "The API key is missing or not valid"}
WITH_NAME: Mapping[int, str] = {404: "There is nothing of that name or id here"}
WITH_BODY: Mapping[int, str] = {
    404: "No such model or file here",
    408: "The body did not arrive in time, or the request's own deadline passed",
    413: "The body is larger than 32 MiB",
    429: "The key has used up its requests, tokens or concurrency; Retry-After says when to come back",
}


# One event of a stream (WHATWG HTML, "Server-sent events").
_EVENT: Json = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_SCHEMAS: list[Callable[[], Json]] = []


def request_body(schema: Callable[[], Json]) -> Json:
    """The entry of a body of JSON. Its schema is made with the document: no server start waits for it."""
    _SCHEMAS.append(schema)
    return {"x-body": len(_SCHEMAS) - 1}


def replies(
    body: type[msgspec.Struct],
    chunk: type[msgspec.Struct] | None = None,
    *,
    other: type[msgspec.Struct] | None = None,
) -> dict[int | str, Json]:
    """The `responses` of a route that answers with `body` or `other`, or with a stream of `chunk`s."""
    schemas = [{"$ref": SCHEMA_OF.format(name=kind.__name__)} for kind in (body, other) if kind is not None]
    content: Json = {"application/json": {"schema": schemas[0] if other is None else {"anyOf": schemas}}}
    if chunk is not None:
        text = f"With stream: true, `data:` lines of {chunk.__name__} (or an ErrorBody), then `data: [DONE]`."
        content["text/event-stream"] = {"schema": _EVENT | {"description": text}}
    return {200: {"description": "The reply", "content": content}}


def document(app: FastAPI) -> Json:
    """The OpenAPI document of `app`, made once: its routes, the errors that all have, their schemas."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=__version__, routes=app.routes)
        parts: Json = {}
        for path, operations in cast("Json", found["paths"]).items():
            for method, operation in operations.items():
                _complete(path, method, operation)
                parts |= _parts_of_body(operation)
        _, schemas = msgspec.json.schema_components(BODIES, ref_template=SCHEMA_OF)
        components = found.setdefault("components", {})
        components["schemas"] = schemas | parts
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        found["security"] = [{}, {"bearer": []}, {"x-api-key": []}]
        app.openapi_schema = found
    return app.openapi_schema


def _parts_of_body(operation: Json) -> Json:
    """Take the schemas that a request's body refers to out of it: references start at the document."""
    found: Json = {}
    for content in operation.get("requestBody", {}).get("content", {}).values():
        parts = content["schema"].pop("$defs", {})
        found |= {f"{content['schema']['title']}_{name}": part for name, part in parts.items()}
    return found


def _complete(path: str, method: str, operation: Json) -> None:
    """Add what every operation has; take out what FastAPI only assumes."""
    if "x-body" in operation:
        place: int = operation.pop("x-body")
        content = {"application/json": {"schema": _SCHEMAS[place]()}}
        operation["requestBody"] = {"required": True, "content": content}
    anthropic = path.startswith(MESSAGES_PATH)
    responses: Json = operation["responses"]
    responses.pop("422", None)
    errors = dict(ANY_CALL)
    if path not in OPEN_PATHS:
        errors |= WITH_KEY
    if method == "post" or "requestBody" in operation:
        errors |= WITH_BODY
    elif "{" in path:
        errors |= WITH_NAME
    if anthropic:
        errors = {ANTHROPIC_STATUSES.get(status, status): text for status, text in errors.items()}
    error = next((body for start, body in ERRORS.items() if path.startswith(start)), ErrorBody)
    schema = {"$ref": SCHEMA_OF.format(name=error.__name__)}
    for status, text in sorted(errors.items()):
        responses.setdefault(
            str(status), {"description": text, "content": {"application/json": {"schema": schema}}}
        )


@router.get("/docs")
async def docs(http: HttpRequest) -> Response:
    """The document as a page that needs nothing from elsewhere."""
    return Response(_page(http.app.openapi()), media_type="text/html; charset=utf-8")


_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{font:14px/1.4 ui-monospace,monospace}pre{overflow:auto;background:#8881;padding:1rem}
summary{cursor:pointer}td{padding:.1rem 1rem .1rem 0;vertical-align:top}"""


def _page(found: Json) -> str:
    title, version = _escape(found["info"]["title"]), _escape(found["info"]["version"])
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
        f"<style>{_STYLE}</style><h1>{title} {version}</h1>",
        "<p>This page in a form for programs: <a href=openapi.json>openapi.json</a>.</p>",
    ]
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            parts.append(_section(f"{method.upper()} {path}", operation))
    parts.append("<h2>Bodies of replies</h2>")
    parts += [_details(name, schema) for name, schema in sorted(found["components"]["schemas"].items())]
    return "\n".join(parts)


def _section(title: str, operation: Json) -> str:
    rows = "".join(
        f"<tr><td><code>{_escape(status)}</code><td>{_escape(reply['description'])}"
        for status, reply in sorted(operation["responses"].items())
    )
    body = operation.get("requestBody")
    contents: list[Json] = list(body["content"].values()) if body else []
    schema = "".join(_details("Body", content["schema"]) for content in contents)
    text = _escape(operation.get("description", ""))
    return f"<h2><code>{_escape(title)}</code></h2><p>{text}</p>{schema}<table>{rows}</table>"


def _details(title: str, schema: Json) -> str:
    text = _escape(json.dumps(schema, indent=2))
    return f"<details><summary>{_escape(title)}</summary><pre>{text}</pre></details>"


def _escape(text: object) -> str:
    return html.escape(str(text))
