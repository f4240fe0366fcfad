"""The page of the HTTP API: the OpenAPI document of the server, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from page_text import code, generated, table

from headrace.api.app import create_app
from headrace.config.sources import load_settings
from headrace.workers.model_manager import ModelManager, Policy
from headrace.workers.model_spec import spec_of

Json = dict[str, Any]

INTRODUCTION = """Made from the document that a server shows at `/openapi.json` (for programs) and `/docs`
(for people). Requests are JSON unless a section says otherwise. With API keys, send `Authorization: Bearer
KEY` or `x-api-key: KEY`.

A field that an endpoint does not know is refused by name. A field that it accepts without effect is listed
in the reply's `warnings`, and for replies of any form in the header `x-headrace-warnings`, as JSON (the
first 4 KB). Every reply has `x-request-id`. Sampling fields are described on the page
[Sampling parameters](sampling.md), errors on the page [Errors](errors.md)."""

GROUPS = (
    ("OpenAI: chat and text", ("/v1/chat/", "/v1/completions")),
    ("OpenAI: responses", ("/v1/responses",)),
    (
        "OpenAI: embeddings, files, batches, models",
        ("/v1/embeddings", "/v1/files", "/v1/batches", "/v1/models"),
    ),
    (
        "Encoders: embed, rerank, classify, entities",
        (
            *(
                "/v1/embed",
                "/v2/",
                "/v1/rerank",
                "/v1/score",
                "/v1/classify",
                "/v1/entities",
                "/v1/moderations",
            ),
            *(
                "/embed",
                "/similarity",
                "/rerank",
                "/score",
                "/classify",
                "/predict",
                "/pooling",
                "/pipeline/",
            ),
            *("/info", "/decode"),
        ),
    ),
    ("Personal data", ("/v1/redact", "/analyze", "/anonymize", "/supportedentities", "/recognizers")),
    ("Anthropic: messages", ("/v1/messages",)),
    ("Ollama", ("/api/",)),
    ("Tokens and prompts", ("/tokenize", "/detokenize", "/apply-template")),
    ("Operation", ("/health", "/ready", "/metrics")),
)
COMMON = {"400", "401", "403", "404", "408", "413", "429", "431", "500", "503", "529"}


def page() -> str:
    """The whole page."""
    document = openapi()
    paths: Json = dict(document["paths"])
    parts = [INTRODUCTION, "## Statuses of every endpoint", _statuses(document)]
    for title, starts in (*GROUPS, ("Other", ("/",))):
        chosen = [path for path in paths if path.startswith(starts)]
        if chosen:
            parts.append(f"## {title}")
        for path in chosen:
            for method, operation in paths.pop(path).items():
                parts += _operation(method, path, operation)
    parts += ["## Bodies", *_bodies(document["components"]["schemas"])]
    return generated("HTTP API", "src/headrace/api/", *parts)


def openapi() -> Json:
    """The OpenAPI document of a server; no model is loaded."""
    settings = load_settings({}, environ={}, folders=())

    def never(spec: object) -> Any:
        raise AssertionError("the document needs no model")

    manager = ModelManager([spec_of("mini", settings)], never, Policy(memory_bytes=0))
    return create_app(manager, settings).state.document.content


def _statuses(document: Json) -> str:
    rows: dict[str, str] = {}
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, reply in operation["responses"].items():
                if status in COMMON:
                    rows.setdefault(status, reply["description"])
    return table(["status", "when"], [(status, rows[status] + ".") for status in sorted(rows)])


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"### {method.upper()} `{path}`"
    yield str(operation.get("description", "")).strip().replace("\n", " ")
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [(code(each["name"]), each["in"], _type(each["schema"])) for each in parameters]
        yield table(["parameter", "in", "type"], rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if kind != "application/json":
            yield f"The body is `{kind}`."
        yield _fields(content["schema"])
    yield from _replies(operation["responses"])


def _replies(responses: Json) -> Iterator[str]:
    for status, reply in responses.items():
        if status in COMMON:
            continue
        for kind, content in reply.get("content", {}).items():
            schema = content["schema"]
            if kind == "application/json":
                yield f"**{status}**: {_type(schema)}"
            else:
                yield f"**{status}**, `{kind}`: {schema.get('description') or reply['description']}"


def _fields(schema: Json) -> str:
    """A table of the fields of a body; those that are refused or have no effect are lines below it."""
    required = set(schema.get("required", ()))
    rows: list[tuple[str, ...]] = []
    refused: list[str] = []
    without_effect: list[str] = []
    for name, field in schema.get("properties", {}).items():
        if str(field.get("description", "")).startswith("Not supported yet"):
            refused.append(code(name))
            continue
        if field.get("description") == "Has no effect.":
            without_effect.append(code(name))
            continue
        default = "required" if name in required else _default(field)
        rows.append((code(name), _type(field), default, _notes(field)))
    if not rows:
        return _type(schema)
    rows.sort(key=lambda row: row[2] != "required")
    text = table(["field", "type", "default", "notes"], rows)
    if without_effect:
        text += f"\n\nAccepted without effect, with a line in `warnings`: {', '.join(without_effect)}."
    if refused:
        text += f"\n\nAccepted only with their neutral value, refused otherwise: {', '.join(refused)}."
    return text


def _default(field: Json) -> str:
    value = field.get("default")
    return "" if value is None else code(value)


def _notes(field: Json) -> str:
    notes: list[str] = []
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    sizes = {"maxItems": "at most {} entries", "maxLength": "at most {} characters"}
    for part in [field, *field.get("anyOf", [])]:
        notes += [str(part["description"])] if "description" in part else []
        notes += [f"{sign} {part[key]:g}" for key, sign in bounds.items() if key in part]
        notes += [text.format(part[key]) for key, text in sizes.items() if key in part]
    if field.get("deprecated"):
        notes.append("deprecated")
    return "; ".join(dict.fromkeys(notes))


def _type(schema: Json) -> str:
    """A schema in a few words; references link to the section of the body."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " ".join(code(value) for value in schema["enum"] if value is not None)
    if "const" in schema:
        return code(schema["const"])
    parts = schema.get("anyOf") or schema.get("oneOf")
    if parts:
        kinds = [_type(part) for part in parts if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds)) or "null"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(each for each in kind if each != "null")
    if kind == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    return str(kind)


def _bodies(schemas: Json) -> Iterator[str]:
    for name in sorted(schemas):
        schema = schemas[name]
        yield f"### {name} {{ #{name.lower()} }}"
        if schema.get("description"):
            yield str(schema["description"]).replace("\n", " ")
        yield _fields(schema)
