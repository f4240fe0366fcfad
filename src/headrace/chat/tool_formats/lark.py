"""Builder for grammars in llguidance's Lark dialect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.grammar.json_schema import CompiledSchema, compile_schema
from headrace.grammar.patterns import not_beginning_with

SpecialId = Callable[[str], int | None]
"""The id of a special token by its spelling; None if it is ordinary text."""


class Lark:
    """Collects rules. Markers that are special tokens are written as those tokens, because a grammar's
    text never matches special tokens.
    """

    def __init__(self, special_id: SpecialId, marks: Iterable[str], *, closes: bool = False) -> None:
        """`closes`: objects that list properties have no others, see `json_schema.compile_schema`."""
        self.closes = closes
        self._compiled: dict[int, tuple[CompiledSchema, Mapping[str, Any]]] = {}
        self.warnings: list[str] = []
        """What is not enforced, by tool."""
        self._ids = {mark: found for mark in marks if (found := special_id(mark)) is not None}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if self._ids else None
        self._rules: list[str] = []

    def is_special(self, mark: str) -> bool:
        """True if `mark` is a special token."""
        return mark in self._ids

    def text(self, text: str) -> str:
        """An expression for exactly `text`."""
        parts = self._split.split(text) if self._split else [text]
        written = [f"<[{self._ids[part]}]>" if part in self._ids else _quoted(part) for part in parts if part]
        return " ".join(written) if written else '""'

    def json(self, schema: Mapping[str, Any]) -> str:
        """An expression for a JSON value matching the schema. Raises SchemaRefused."""
        return "%json " + self.compiled(schema).text

    def compiled(self, schema: Mapping[str, Any]) -> CompiledSchema:
        """The schema for llguidance. Raises SchemaRefused."""
        if id(schema) not in self._compiled:  # kept with the schema, so that no other one gets its id
            compiled = compile_schema(schema, param="tools", disable_additional_properties=self.closes)
            self._compiled[id(schema)] = compiled, schema
        return self._compiled[id(schema)][0]

    @property
    def schemas(self) -> list[CompiledSchema]:
        """All schemas of tools so far."""
        return [compiled for compiled, _ in self._compiled.values()]

    def up_to(self, mark: str) -> str:
        """An expression for any text followed by `mark`, which occurs only there."""
        if self.is_special(mark):
            return f"{self.free()} {self.text(mark)}"
        return self.rule(f"/(?s:.*)/ {_quoted(mark)}", "[lazy]")

    def other_than(self, beginnings: Sequence[str]) -> str:
        """An expression for any text that begins with none of `beginnings`."""
        return self.rule(f"/{not_beginning_with(beginnings)}/")

    def free(self) -> str:
        """An expression for any text."""
        return self.rule("/(?s:.*)/", name="FREE")

    def rule(self, body: str, attributes: str = "", *, name: str = "") -> str:
        """Add a rule; returns its name."""
        name = name or f"rule_{len(self._rules)}"
        line = f"{name}{attributes}: {body}"
        if line not in self._rules:
            self._rules.append(line)
        return name

    def any_of(self, options: Iterable[str]) -> str:
        """A rule for alternatives."""
        return self.rule(" | ".join(f"({option})" for option in options))

    def members(self, required: Sequence[str], optional: Sequence[str], comma: str) -> str:
        """An expression for `required` and any subset of `optional`, in order, separated by `comma`."""
        between = self.text(comma)
        if required:
            more = "".join(f" ({between} {member})?" for member in optional)
            return f" {between} ".join(required) + more
        choices = [
            member + "".join(f" ({between} {later})?" for later in optional[index + 1 :])
            for index, member in enumerate(optional)
        ]
        return f"({self.any_of(choices)})?" if choices else self.text("")

    @property
    def position(self) -> int:
        """How many rules there are."""
        return len(self._rules)

    def reset(self, position: int) -> None:
        """Drop the rules behind a position."""
        del self._rules[position:]

    def has(self, name: str) -> bool:
        """True if a rule with this name exists."""
        return any(line.startswith(f"{name}:") for line in self._rules)

    def grammar(self, start: str) -> str:
        """The grammar text."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
