"""GET /openapi.json and /docs: what every endpoint takes and every status it may answer with."""

from __future__ import annotations

import html
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace import __version__
from headrace.api.anthropic.errors import ANTHROPIC_STATUSES, MESSAGES_PATH, AnthropicError
from headrace.api.google.errors import PATHS as GOOGLE_PATHS
from headrace.api.google.errors import GoogleError
from headrace.api.http.body import RequestBody, completed_schema
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import ErrorBody
from headrace.api.http.idempotency import MAX_KEY
from headrace.api.http.middleware import OPEN_PATHS
from headrace.api.http.query import query_parameters
from headrace.api.llama_cpp.errors import PATHS as LLAMA_PATHS
from headrace.api.llama_cpp.errors import LlamaError
from headrace.api.ollama.errors import OllamaError
from headrace.api.service import get_service
from headrace.api.tei.errors import PATHS as TEI_PATHS
from headrace.api.tei.errors import SHARED_PATHS, TeiError

Json = dict[str, Any]

# Bodies of errors by their paths, and by the beginning of these, as OF_PATHS and SHAPES make them.
ERRORS_OF_PATHS: Mapping[str, type[Struct]] = dict.fromkeys(TEI_PATHS, TeiError)
ERRORS: Mapping[str, type[Struct]] = {
    "/api/": OllamaError,
    MESSAGES_PATH: AnthropicError,
    GOOGLE_PATHS: GoogleError,
    **dict.fromkeys(LLAMA_PATHS, LlamaError),
}
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
WITH_IDEMPOTENCY_KEY: Mapping[int, str] = {
    409: "The request that had this Idempotency-Key ended without a reply to repeat",
    422: "The Idempotency-Key was sent with another body before",
}
_IDEMPOTENCY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A value of your own for this request, kept for a day: sent again with it, the request is"
    " neither computed nor billed again and gets the reply of the first, which then has the header"
    " Idempotent-Replayed.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]+$"},
}
_PARAMETER = re.compile(r"{(\w+)(:\w+)?}")


class Document:
    """The OpenAPI document of some endpoints and its page, each made when it is first asked for."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = [endpoint for endpoint in endpoints if not endpoint.hidden]

    @cached_property
    def content(self) -> Json:
        """The document as an object."""
        kinds = self._kinds()
        found, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
        references = dict(zip(kinds, found, strict=True))
        own = {kind: schemas[_name(references[kind])] for kind in kinds}
        bodies = {
            one.body: completed_schema(one.body, own) for one in self._endpoints if one.body is not None
        }
        for kind in kinds:
            if issubclass(kind, RequestBody):  # these stand where they are used
                del schemas[_name(references[kind])]
        paths: Json = {}
        for endpoint in self._endpoints:
            operation = _operation(endpoint, references, bodies)
            for method in endpoint.methods.lower().split():
                if method != "head":
                    paths.setdefault(_PARAMETER.sub(r"{\1}", endpoint.path), {})[method] = operation
        return {
            "openapi": "3.1.0",
            "info": {"title": "Headrace", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": dict(sorted(schemas.items())),
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
            "security": [{}, {"bearer": []}, {"x-api-key": []}],
        }

    @cached_property
    def json(self) -> bytes:
        """The document."""
        return json.dumps(self.content, ensure_ascii=False, separators=(",", ":")).encode()

    @cached_property
    def page(self) -> bytes:
        """The document as a page that needs nothing from elsewhere."""
        return _page(self.content).encode()

    def _kinds(self) -> list[type[Struct]]:
        """The bodies of requests and replies, and what they name as parts."""
        kinds: list[type[Struct]] = [ErrorBody, *ERRORS.values(), *ERRORS_OF_PATHS.values()]
        for one in self._endpoints:
            if one.body is not None:
                kinds += (one.body, *one.body.parts.values())
            kinds += (*one.replies, *(kind for content in one.content for kind in content.bodies))
        return list(dict.fromkeys(kinds))


def _name(reference: Json) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _operation(
    endpoint: Endpoint, references: Mapping[type[Struct], Json], bodies: Mapping[type[RequestBody], Json]
) -> Json:
    """An entry of the document."""
    found: Json = {"description": inspect.getdoc(endpoint.handle) or ""}
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name, _ in _PARAMETER.findall(endpoint.path)
    ]
    in_query = [] if endpoint.query is None else query_parameters(endpoint.query)
    in_headers = [_IDEMPOTENCY] if "POST" in endpoint.methods.split() else []
    if in_path or in_query or in_headers:
        found["parameters"] = [*in_path, *in_query, *in_headers]
    if endpoint.form is not None:
        body: Json = {"multipart/form-data": {"schema": endpoint.form}}
        found["requestBody"] = {"required": True, "content": body}
    elif endpoint.body is not None:
        body = {"application/json": {"schema": bodies[endpoint.body]}}
        body |= {text: {"schema": {"type": "string", "minLength": 1}} for text in endpoint.texts}
        found["requestBody"] = {"required": True, "content": body}
    schemas = [references[kind] for kind in endpoint.replies]
    forms: Json = {}
    if schemas:
        forms["application/json"] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    for content in endpoint.content:
        forms[content.media_type] = {"schema": _content_schema(content, references)}
    found["responses"] = {"200": {"description": "The reply", "content": forms}} | _errors(
        endpoint, references
    )
    return found


def _content_schema(content: Content, references: Mapping[type[Struct], Json]) -> Json:
    """The schema of another form of the reply, with that of the bodies in it."""
    if not content.typed:
        return content.schema
    bodies = {"anyOf": [references[kind] for kind in content.bodies]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": bodies}
    return content.schema | {"properties": content.schema["properties"] | {"data": data}}


def _errors(endpoint: Endpoint, references: Mapping[type[Struct], Json]) -> Json:
    """The statuses that the endpoint may have besides 200."""
    errors = dict(ANY_CALL)
    if endpoint.path not in OPEN_PATHS:
        errors |= WITH_KEY
    if endpoint.methods == "POST" or endpoint.body is not None:
        errors |= WITH_BODY
    elif "{" in endpoint.path:
        errors |= WITH_NAME
    if "POST" in endpoint.methods.split():
        errors |= WITH_IDEMPOTENCY_KEY
    if endpoint.path.startswith(MESSAGES_PATH):
        errors = {ANTHROPIC_STATUSES.get(status, status): text for status, text in errors.items()}
    beginning = next((kind for start, kind in ERRORS.items() if endpoint.path.startswith(start)), ErrorBody)
    kind = ERRORS_OF_PATHS.get(endpoint.path, beginning)
    schema = references[kind]
    if endpoint.path in SHARED_PATHS:
        schema = {"anyOf": [schema, references[TeiError]]}
    content = {"application/json": {"schema": schema}}
    return {
        str(status): {"description": text, "content": content}
        for status, text in sorted((errors | dict(endpoint.errors)).items())
    }


def _document(http: HttpRequest) -> Document:
    found = http.app.state.document
    assert isinstance(found, Document)
    return found


@Endpoint("GET", "/openapi.json", hidden=True)
async def openapi(http: HttpRequest) -> Response:
    """The document."""
    document = _document(http)
    data = await get_service(http).run_in_thread(lambda: document.json)
    return Response(data, media_type="application/json")


@Endpoint("GET", "/docs", hidden=True)
async def docs(http: HttpRequest) -> Response:
    """The document as a page."""
    document = _document(http)
    data = await get_service(http).run_in_thread(lambda: document.page)
    return Response(data, media_type="text/html; charset=utf-8")


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
