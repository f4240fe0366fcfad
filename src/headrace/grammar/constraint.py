"""What an output must match: one description for schemas, patterns, grammars and choices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from headrace.errors import InvalidRequest

Kind = Literal["json_schema", "json_object", "regex", "lark", "ebnf", "choice", "structural_tag"]

MAX_CHARACTERS = 256 * 1024
MAX_NESTING = 64
MAX_CHOICES = 4096
MAX_LEVELS = 2000
"""Levels of nesting times definitions that may stand in one another. The compiler recurses: in 8 MB of stack
1,600 were fine and 3,200 were not."""


class GrammarError(InvalidRequest):
    """A grammar that cannot be compiled, or that outgrew its limits while it was followed."""

    code = "grammar_error"


class Constraint(Struct, frozen=True, eq=False):
    """An output must be one of the texts that `text` describes, from its first character to its last.

    `text` is: for json_schema a schema as JSON; for json_object nothing; for regex a regular expression of
    Rust's `regex` syntax, that matches the whole output; for lark a grammar of llguidance's dialect of Lark
    (special tokens as `<name>`, schemas as `%json {...}`, see `json_schema.schema_text`); for ebnf one in
    GBNF, llama.cpp's notation; for choice a JSON list of texts; for structural_tag one as JSON.

    `after` is a text (such as `</think>`) before whose end nothing is constrained, except that the output
    cannot end; up to 8 characters of white space may follow it. `param` is what errors name, and makes no
    difference between two. `disable_additional_properties`: see `json_schema.compile_schema`. With
    `finishes`, an output that comes near its most tokens takes a short way to its end (`grammar.finishing`).
    """

    kind: Kind
    text: str = ""
    after: str | None = None
    param: str | None = None
    disable_additional_properties: bool = False
    finishes: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self.error(f"is {str(self.text)[:40]!r}, it must be a text")
        if len(self.text) > MAX_CHARACTERS:
            raise self.error(f"has {len(self.text):,} characters, at most {MAX_CHARACTERS:,} are allowed")
        if self.after == "":
            raise self.error("has an empty `after`: give the text after which it starts, or None")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constraint) and self._described == other._described

    def __hash__(self) -> int:
        return hash(self._described)

    @property
    def _described(self) -> tuple[Kind, str, str | None, bool]:
        """What is compiled."""
        return self.kind, self.text, self.after, self.disable_additional_properties

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.param or self.kind

    def error(self, cause: str) -> GrammarError:
        """An error about this constraint."""
        return GrammarError(f"{self.name} {cause}", param=self.name)


def schema_constraint(schema: object, *, after: str | None = None, param: str | None = None) -> Constraint:
    """A constraint to a JSON Schema: a mapping, a boolean, JSON text, or a class with `model_json_schema`."""
    make = getattr(schema, "model_json_schema", None)
    if callable(make):
        schema = make()
    if isinstance(schema, str):
        return Constraint("json_schema", schema, after, param)
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError) as error:
        name = param or "json_schema"
        raise GrammarError(f"{name} is not a JSON Schema: {str(error)[:200]}", param=name) from None
    return Constraint("json_schema", text, after, param)


def choice_constraint(
    choices: Sequence[str], *, after: str | None = None, param: str | None = None
) -> Constraint:
    """A constraint to one of several texts."""
    return Constraint("choice", json.dumps(list(choices), ensure_ascii=False), after, param)
