"""`response_format` and its kin: what the output must match, in OpenAI's words and in vLLM's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from headrace.errors import InvalidRequest
from headrace.grammar.constraint import Constraint, choice_constraint, schema_constraint
from headrace.grammar.sql import sql_constraint

SCHEMA_OR_TEXT: Final = {"anyOf": [{"type": "object"}, {"type": "boolean"}, {"type": "string"}]}
_SCHEMA: Final = {"anyOf": [{"type": "object"}, {"type": "boolean"}]}
SQL: Final = {
    "description": "The output is one SELECT statement over these tables: for each its list of columns.",
    "type": "object",
    "properties": {
        "tables": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "minProperties": 1,
        }
    },
    "required": ["tables"],
    "additionalProperties": False,
}
STRUCTURAL_TAG: Final = {
    "type": "object",
    "properties": {
        "type": {"const": "structural_tag"},
        "structures": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"begin": {"type": "string"}, "end": {"type": "string"}},
                "required": ["begin", "schema", "end"],
            },
        },
        "triggers": {"type": "array", "items": {"type": "string"}},
        "format": {"type": "object", "required": ["type"]},
    },
    "required": ["type"],
    "additionalProperties": False,
}


def _only(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these members and no others, of which `type` is required."""
    return {
        "type": "object",
        "properties": properties,
        "required": ["type"],
        "additionalProperties": False,
    }


RESPONSE_FORMAT: Final = {
    "description": (
        "The output is a JSON object, JSON that matches a schema, or text with marked parts that do. A "
        "schema is always enforced, also with `strict: false`; a keyword that cannot be is refused by name. "
        "Properties come in the schema's order."
    ),
    "anyOf": [
        _only({"type": {"const": "text"}}),
        _only({"type": {"const": "json_object"}, "schema": {"type": ["object", "null"]}}),
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": ["string", "null"]},
                        "description": {"type": ["string", "null"]},
                        "schema": _SCHEMA,
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["schema"],
                    "additionalProperties": False,
                },
            },
            "required": ["type", "json_schema"],
            "additionalProperties": False,
        },
        STRUCTURAL_TAG,
    ],
}
STRUCTURED_OUTPUTS: Final = {
    "description": "What the output must match: a schema, a regular expression, texts, a grammar, or SQL.",
    "type": "object",
    "properties": {
        "json": SCHEMA_OR_TEXT,
        "json_object": {"type": "boolean"},
        "regex": {"type": "string"},
        "choice": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "grammar": {"type": "string"},
        "sql": SQL,
        "structural_tag": {"anyOf": [STRUCTURAL_TAG, {"type": "string"}]},
    },
    "additionalProperties": False,
}
_SCHEMA_MEMBERS: Final = {"name", "description", "schema", "strict"}
GUIDED: Final = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_sql"),
    *("grammar", "json_schema"),  # as llama.cpp's server calls two of them
)


def constraint_of(given: Mapping[str, Any], after: str | None) -> Constraint | None:
    """The constraint of the one parameter in `given`; InvalidRequest where several are given."""
    found: list[tuple[str, Constraint]] = []
    for name, value in given.items():
        if name == "response_format":
            constraint = _response_format(value, after)
        elif name == "text.format":
            constraint = _text_format(value, after)
        elif name == "structured_outputs":
            constraint = _structured_outputs(value, after)
        else:
            constraint = _READERS[name.removeprefix("guided_").removesuffix("_schema")](value, after, name)
        if constraint is not None:
            found.append((name, constraint))
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise InvalidRequest(f"{names} both say what the output must match: send one", param=found[1][0])
    return found[0][1] if found else None


def _response_format(value: object, after: str | None) -> Constraint | None:
    name = "response_format"
    kinds: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if kinds.get("type") == "structural_tag":
        return _structural_tag(kinds, after, name)
    form = _members(name, cast("object", value), {"type", "json_schema", "schema"})
    kind = form.get("type")
    for member, place in (("json_schema", "json_schema"), ("schema", "json_object")):
        if kind != place and member in form:
            raise InvalidRequest(f'{name}.{member} needs "type": "{place}"', param=name)
    if kind == "text":
        return None
    if form.get("schema") not in (None, {}):  # as llama.cpp's server has it
        return schema_constraint(_members(f"{name}.schema", form["schema"], None), after=after, param=name)
    if kind == "json_object":
        return Constraint("json_object", "", after, name)
    if kind != "json_schema":
        raise InvalidRequest(
            f"{name}.type is {str(kind)[:40]!r}, it must be text, json_object, json_schema or structural_tag",
            param=name,
        )
    inner = _members(f"{name}.json_schema", form.get("json_schema"), _SCHEMA_MEMBERS)
    return _named_schema(inner, after, f"{name}.json_schema", name)


def _text_format(value: object, after: str | None) -> Constraint | None:
    """`text.format` of the Responses API, where the schema's members stand beside the type."""
    name = "text.format"
    form = _members(name, value, {"type", *_SCHEMA_MEMBERS})
    kind = form.get("type")
    if kind == "json_schema":
        return _named_schema(form, after, name, name)
    if kind not in ("text", "json_object"):
        raise InvalidRequest(
            f"{name}.type is {str(kind)[:40]!r}, it must be text, json_object or json_schema", param=name
        )
    if len(form) > 1:
        raise InvalidRequest(f'{name} has members of a schema: these need "type": "json_schema"', param=name)
    return Constraint("json_object", "", after, name) if kind == "json_object" else None


def _named_schema(form: Mapping[str, Any], after: str | None, where: str, name: str) -> Constraint:
    for key, wanted in (("name", str), ("description", str), ("strict", bool)):
        if form.get(key) is not None and not isinstance(form[key], wanted):
            raise InvalidRequest(f"{where}.{key} is not a {wanted.__name__}", param=name)
    if not isinstance(form.get("schema"), dict | bool):
        raise InvalidRequest(f"{where}.schema is missing or no schema", param=name)
    return schema_constraint(form["schema"], after=after, param=name)


def _structured_outputs(value: object, after: str | None) -> Constraint | None:
    name = "structured_outputs"
    form = _members(name, value, {*_READERS, "json_object"})
    given = {key: entry for key, entry in form.items() if entry is not None and entry is not False}
    if len(given) != 1:
        known = ", ".join([*_READERS, "json_object"])
        raise InvalidRequest(f"{name} has {len(given)} members: give one of {known}", param=name)
    [(key, entry)] = given.items()
    if key == "json_object":
        return Constraint("json_object", "", after, name)
    return _READERS[key](entry, after, name)


def _schema(value: object, after: str | None, name: str) -> Constraint:
    if isinstance(value, dict | bool | str):
        return schema_constraint(cast("object", value), after=after, param=name)
    raise InvalidRequest(f"{name} is not a JSON Schema, nor the text of one", param=name)


def _regex(value: object, after: str | None, name: str) -> Constraint:
    return Constraint("regex", _text(value, name), after, name)


def _grammar(value: object, after: str | None, name: str) -> Constraint:
    text = _text(value, name)
    return Constraint("ebnf" if "::=" in text else "lark", text, after, name)


def _sql(value: object, after: str | None, name: str) -> Constraint:
    tables = _members(name, value, {"tables"}).get("tables")
    return sql_constraint(tables, after=after, param=name)


def _choice(value: object, after: str | None, name: str) -> Constraint:
    texts = cast("list[object]", value) if isinstance(value, list) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name} is not a list of texts", param=name)
    return choice_constraint(cast("list[str]", texts), after=after, param=name)


def _structural_tag(value: object, after: str | None, name: str) -> Constraint:
    """An object, or the text of one; what is in it is looked at when it is compiled."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Constraint("structural_tag", text, after, name)


_READERS: Final[Mapping[str, Callable[[object, str | None, str], Constraint]]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "sql": _sql,
    "structural_tag": _structural_tag,
}


def _text(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(f"{name} is {str(value)[:40]!r}, it must be a text", param=name)


def _members(name: str, value: object, known: set[str] | None) -> dict[str, Any]:
    param = name if name == "text.format" else name.split(".")[0]
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is missing or no object", param=param)
    members = cast("dict[str, Any]", value)
    unknown = [] if known is None else sorted(members.keys() - known)
    if known and unknown:
        raise InvalidRequest(
            f"{name} has the unknown member {unknown[0][:80]!r}; known: {', '.join(sorted(known))}",
            param=param,
        )
    return members
