"""Schemas as people and their tools write them. An independent validator judges every output."""

from __future__ import annotations

import json
import random
from typing import Any, Literal

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from test_grammar import EOS, GRAMMARS, TOKENS, admits, allowed

from headrace.grammar.constraint import Constraint, GrammarError
from headrace.grammar.json_schema import SchemaRefused, compile_schema, schema_warnings
from headrace.grammar.matcher import Matcher
from headrace.grammar.schema.numbers import DECIMALS, LARGEST_INTEGER, LARGEST_NUMBER

ENDINGS = frozenset({*b'"]}:,', EOS})


def constraint(schema: object, *, closes: bool = True) -> Constraint:
    return Constraint("json_schema", json.dumps(schema), disable_additional_properties=closes)


def output(matcher: Matcher, rng: random.Random, limit: int = 600) -> str | None:
    """A random output, as the masks let it through; None if it does not end soon."""
    data = bytearray()
    for _ in range(limit):
        if matcher.finished:
            return data.decode("utf-8", "replace")
        choices = allowed(matcher)
        assert choices, f"nothing may follow {data!r}"
        ends = [token for token in choices if token in ENDINGS]
        token = rng.choice(ends if ends and rng.random() < 0.6 else choices)
        if token == EOS:
            return data.decode("utf-8", "replace")
        data += TOKENS[token]
        matcher.accept(token)
    return None


def outputs(schema: object, *, closes: bool, count: int = 12, seed: int = 0) -> list[Any]:
    made: list[Any] = []
    for index in range(count):
        text = output(GRAMMARS.matcher(constraint(schema, closes=closes)), random.Random(seed + index))
        if text is not None and "\ufffd" not in text:
            made.append(json.loads(text))
    return made


def check(schema: Any, *, closes: bool, count: int = 12, seed: int = 0) -> list[Any]:
    """Outputs of a schema, all of which validate."""
    validator = jsonschema_rs.Draft202012Validator(schema)
    made = outputs(schema, closes=closes, count=count, seed=seed)
    for value in made:
        assert validator.is_valid(value), (schema, value)
    return made


# Any combination of keywords, on a few names and values so that they meet.

NAMES = st.sampled_from(["a", "b", "ab"])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "a", "ab", "b"]))
COUNTS = st.integers(0, 2)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["null", "boolean", "integer", "number", "string", "array", "object", ["string", "null"]]
        ),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-1, 4),
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "pattern": st.sampled_from(["^a", "b$", "^[ab]*$"]),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "minProperties": st.integers(0, 1),
        "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        "x-note": st.just(1),
    },
).map(lambda node: dict(list(node.items())[:4]))


def branches(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(NAMES, inner, max_size=2)
    added = st.fixed_dictionaries(
        {},
        optional={
            "properties": named,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "^b"]), inner, max_size=1),
            "additionalProperties": inner,
            "propertyNames": st.sampled_from([{"pattern": "^a"}, {"enum": ["a", "b"]}, {"maxLength": 1}]),
            "items": inner,
            "prefixItems": listed,
            "contains": inner,
            "maxContains": COUNTS,
            "uniqueItems": st.just(True),
            "allOf": listed,
            "anyOf": listed,
            "oneOf": listed,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": named,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
        },
    ).map(lambda node: dict(list(node.items())[:3]))
    return st.builds(lambda leaf, more: {**leaf, **more}, LEAVES, added)


SCHEMAS = st.recursive(st.one_of(st.booleans(), LEAVES), branches, max_leaves=6)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.booleans(), st.integers(0, 1000))
def test_every_output_validates(schema: Any, closes: bool, seed: int) -> None:
    try:
        GRAMMARS.matcher(constraint(schema, closes=closes))
    except GrammarError:
        return
    check(schema, closes=closes, count=3, seed=seed)


# Schemas of tools that people use.

VS_CODE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.org/tasks.schema.json",
    "$comment": "as on SchemaStore",
    "title": "Tasks",
    "type": "object",
    "allowTrailingCommas": True,
    "definitions": {
        "level": {
            "enum": ["low", "high"],
            "enumDescriptions": ["Low", "High"],
            "markdownEnumDescriptions": ["*Low*", "*High*"],
            "tsType": "Level",
            "x-intellij-language-injection": "XPath",
        },
        "task": {
            "type": "object",
            "properties": {
                "label": {
                    "type": "string",
                    "markdownDescription": "The *label*",
                    "defaultSnippets": [{"body": ""}],
                },
                "level": {"$ref": "#/definitions/level", "description": "has no effect beside $ref"},
                "port": {"type": "integer", "minimum": 1, "maximum": 65535, "errorMessage": "no port"},
                "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
            },
            "required": ["label"],
            "dependencies": {"port": ["level"]},
            "patternProperties": {"^x-": {}},
            "additionalProperties": False,
        },
    },
    "properties": {"tasks": {"type": "array", "items": {"$ref": "#/definitions/task"}, "maxItems": 3}},
    "required": ["tasks"],
}
DRAFT_4 = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "id": "https://example.org/range.json",
    "type": "object",
    "properties": {
        "share": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1},
        "pair": {
            "type": "array",
            "items": [{"type": "string"}, {"type": "boolean"}],
            "additionalItems": False,
        },
    },
    "required": ["share", "pair"],
}
OPEN_API = {
    "type": "object",
    "x-internal": True,
    "properties": {
        "id": {"type": "integer", "format": "int64", "maximum": 9223372036854775807, "readOnly": True},
        "price": {"type": "number", "format": "double", "example": 1.5, "x-unit": "EUR"},
        "name": {"type": "string", "nullable": True, "default": "", "examples": ["x"], "deprecated": True},
        "kind": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"t": {"enum": ["a"]}, "n": {"type": "integer"}},
                    "required": ["t"],
                },
                {"type": "object", "properties": {"t": {"enum": ["b"]}}, "required": ["t"]},
            ],
            "discriminator": {"propertyName": "t"},
            "xml": {"name": "kind"},
        },
    },
    "required": ["id", "price", "kind"],
}
CONDITIONS = {
    "type": "object",
    "properties": {
        "country": {"enum": ["US", "NL"]},
        "code": {"type": "string", "maxLength": 7},
        "tax": {"type": "string"},
    },
    "required": ["country", "code"],
    "if": {"properties": {"country": {"const": "US"}}},
    "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}},
    "else": {"properties": {"code": {"pattern": "^[0-9]{4} [A-Z]{2}$"}}, "not": {"required": ["tax"]}},
}
MERGED = {
    "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}},
    "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"name": {"enum": ["x", "y"]}}, "required": ["name"]}],
    "unevaluatedProperties": False,
}


class Item(BaseModel):
    name: str = Field(max_length=8)
    kind: Literal["a", "b"] = "a"
    size: float | None = Field(default=None, gt=0, lt=100)
    parts: list[Item] = []


class Order(BaseModel):
    items: list[Item] = Field(min_length=1, max_length=2)
    by_name: dict[str, int] = Field(default={}, json_schema_extra={"x-order": 1})
    pair: tuple[int, bool]
    either: Item | int


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    "schema",
    [VS_CODE, DRAFT_4, OPEN_API, CONDITIONS, MERGED, Order.model_json_schema()],
    ids=["vs code", "draft 4", "openapi", "if", "allOf", "pydantic"],
)
def test_schemas_as_people_write_them(schema: Any, closes: bool) -> None:
    validator = jsonschema_rs.validator_for(schema)
    made = outputs(schema, closes=closes, count=20)
    assert len(made) >= 5
    for value in made:
        assert validator.is_valid(value), value


def test_unknown_keywords_are_annotations_and_listed_once() -> None:
    compiled = compile_schema(VS_CODE)
    assert compiled.unused == (
        "allowTrailingCommas", "markdownDescription", "defaultSnippets", "errorMessage",
        "enumDescriptions", "markdownEnumDescriptions", "tsType", "x-intellij-language-injection",
    )  # fmt: skip
    [warning] = schema_warnings([compiled, compiled])
    assert warning == "not part of what is enforced: " + ", ".join(compiled.unused)
    assert schema_warnings([compile_schema({"title": "x", "description": "y", "default": 1})]) == []
    many = compile_schema({f"x-{i}": 1 for i in range(30)})
    assert schema_warnings([many])[0].endswith("x-19 and 10 more")


def test_a_format_that_is_not_checked_is_said() -> None:
    assert compile_schema({"items": {"format": "int64"}}).unused == ("format 'int64'",)
    assert compile_schema({"format": "regex"}).unused == ("format 'regex'",)
    for name, right, wrong in (
        ("json-pointer", ["", "/a~1b", "/é/0"], ["a", "/~2"]),
        ("uri-reference", ["a/b?c#d", "/x", "https://example.org/%20"], ["\\", "1:b", "/[x]", "//a@b@c"]),
        ("uri-template", ["/a/{b}{?c,d*}"], ["{", "{}", "{a,}"]),
        ("iri", ["http://example.org/a"], ["/a", "x"]),
        ("idn-email", ["a@example.org"], ["a"]),
        ("relative-json-pointer", ["0#", "1/a"], ["01", "-1/a"]),
    ):
        for text in right:
            assert admits(
                constraint({"type": "string", "format": name}), json.dumps(text, ensure_ascii=False)
            ), text
        for text in wrong:
            assert not admits(constraint({"type": "string", "format": name}), json.dumps(text)), text


def test_a_relative_id_counts_once() -> None:
    """A schema that is referenced has read its own $id already."""
    schema = {
        "$id": "https://example.org/a/base.json",
        "$ref": "nested/foo.json",
        "$defs": {
            "foo": {"$id": "nested/foo.json", "$ref": "./bar.json"},
            "bar": {"$id": "nested/bar.json", "type": "null"},
        },
    }
    assert admits(constraint(schema), "null") and not admits(constraint(schema), "1")


# Properties that are not listed.


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": {}}}, ['{"a": 1}', "{}"], ['{"b": 1}']),
        ({"properties": {"a": {}}, "required": ["b"]}, ['{"a": 1, "b": 1}'], ['{"b": 1, "c": 1}']),
        ({"properties": {"a": {}}, "additionalProperties": True}, ['{"b": 1}'], []),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, ['{"b": null}'], ['{"b": 1}']),
        ({"properties": {"a": {}}, "unevaluatedProperties": True}, ['{"b": 1}'], []),
        ({"type": "object"}, ['{"b": 1}'], []),
        ({"patternProperties": {"^x-": {}}}, ['{"x-a": 1}'], ['{"y": 1}']),
        ({"items": {"properties": {"a": {}}}}, ['[{"a": 1}]'], ['[{"b": 1}]']),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            ['{"a": 1, "b": 2}'], ['{"c": 1}', '{"a": 1, "c": 1}'],
        ),
        (
            {"anyOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}, {"type": "null"}]},
            ['{"a": null}', "null"], ['{"a": null, "b": 1}'],
        ),
        (
            {
                "oneOf": [
                    {"properties": {"a": {}}, "required": ["a"]},
                    {"properties": {"b": {}}, "required": ["b"]},
                ]
            },
            ['{"a": 1}', '{"b": 1}'], ['{"a": 1, "b": 1}', '{"a": 1, "c": 1}'],
        ),
        (
            {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
            ['{"n": {"n": {}}}'], ['{"n": {"x": 1}}'],
        ),
        (
            {"properties": {"k": {}}, "if": {"required": ["k"]}, "then": {"properties": {"v": {}}}},
            ['{"k": 1, "v": 2}', "{}"], ['{"v": 1}', '{"k": 1, "w": 1}'],
        ),
    ],
)  # fmt: skip
def test_objects_that_list_properties_have_no_others(schema: Any, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert admits(constraint(schema), text), text
        assert admits(constraint(schema, closes=False), text), text
    for text in wrong:
        assert not admits(constraint(schema), text), text


def test_only_what_was_closed_is_said() -> None:
    for schema, closed in (
        ({"properties": {"a": {}}}, True),
        ({"properties": {}}, False),
        ({"properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "object"}, False),
    ):
        assert compile_schema(schema, disable_additional_properties=True).closed == closed, schema
        assert not compile_schema(schema).closed


# Numbers.

DIGITS = "1" * DECIMALS


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, ["-12", str(LARGEST_INTEGER)], [str(LARGEST_INTEGER + 1), "1" * 20, "1.0"]),
        ({"type": "number"}, ["0.5", f"-{LARGEST_NUMBER}", f"0.{DIGITS}"], [f"0.{DIGITS}1", "1e3"]),
        ({"type": "integer", "minimum": 1}, ["1", str(LARGEST_INTEGER)], ["0", "9" * 19]),
        ({"type": "number", "maximum": 0.5}, ["0.5", f"-{LARGEST_NUMBER}"], ["0.51", f"-{LARGEST_NUMBER}0"]),
        ({"type": ["integer", "null"]}, ["null", "7"], ["1" * 20]),
        ({"type": "integer", "maximum": 2**63 - 1}, [str(LARGEST_INTEGER)], [str(2**63)]),
        ({"type": "integer", "exclusiveMaximum": 2**60 + 1}, [str(2**60)], [str(2**60 + 1)]),
        ({"type": "number", "multipleOf": 0.01}, ["0.25", "1"], ["0.255"]),
        ({"enum": [1e300]}, [], []),
    ],
)  # fmt: skip
def test_digits_of_numbers_are_bounded(schema: Any, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert admits(constraint(schema), text), text
    for text in wrong:
        assert not admits(constraint(schema), text), text


# Limits.


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"properties": {f"p{i}": {"not": {"enum": ["x" * 200]}}}} for i in range(100)]},
        {"not": {"enum": ["x" * 300]}},
        {"anyOf": [{"properties": {f"a{i}": {}}} for i in range(4)], "allOf": [
            {"anyOf": [{"properties": {f"b{j}{i}": {}}} for i in range(4)]} for j in range(4)
        ], "unevaluatedProperties": False},
        {"type": "array", "items": {"enum": list(range(40))}, "uniqueItems": True},
    ],
)  # fmt: skip
def test_what_multiplies_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaRefused):
        compile_schema(schema)
