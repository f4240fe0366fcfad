"""Structural tags: text in which what stands between marks follows a schema, in xgrammar's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from headrace.grammar.constraint import MAX_NESTING, Constraint
from headrace.grammar.json_schema import schema_text
from headrace.grammar.patterns import lark_regex, nesting

Json = Mapping[str, Any]

MAX_TAGS = 512
"""The compiler takes a millisecond for each."""
MAX_PATTERNS = 512
"""Regular expressions, also those of tags. Each is a lexeme, and the lexer follows all that fit at once."""


def structural_tag_grammar(constraint: Constraint, tag: object, special_ids: Mapping[str, int]) -> str:
    """A grammar of llguidance's dialect of Lark for a structural tag.

    Either `structures` with `triggers`, or a `format`. `special_ids` are tokens that no text spells, by their
    spelling: where a mark has one in it, that token is meant.
    Raises GrammarError that names what is not well formed.
    """
    writer = _Writer(constraint, special_ids)
    form = writer.members(tag, "")
    if "format" in form:
        writer.only(form, "type", "format")
        body = writer.format(form["format"], "format", 0)
    else:
        writer.only(form, "type", "structures", "triggers")
        tags = [writer.members(one, "structures") for one in writer.entries(form, "structures")]
        body = writer.triggered(
            [
                {
                    "begin": one.get("begin"),
                    "content": {"type": "json_schema", "json_schema": one.get("schema")},
                    "end": one.get("end"),
                }
                for one in tags
            ],
            writer.entries(form, "triggers"),
            {},
            0,
        )
    return writer.grammar(body)


class _Writer:
    """Collects the rules. What it returns are expressions that stand for one format each."""

    def __init__(self, constraint: Constraint, special_ids: Mapping[str, int]) -> None:
        self._constraint, self._special_ids = constraint, special_ids
        longest_first = sorted(filter(None, special_ids), key=len, reverse=True)
        self._split = (
            re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        )
        self._rules = ["FREE: /(?s:.*)/"]
        self._tags = self._patterns = 0
        self._formats: Mapping[str, Callable[[Json, int], str]] = {
            "const_string": lambda form, _: self.text(self.string(form, "value")),
            "json_schema": lambda form, _: self._schema(form),
            "regex": lambda form, _: f"/{self._pattern(form)}/",
            "any_text": lambda form, _: "FREE",
            "sequence": lambda form, depth: " ".join(self._each(form, depth)),
            "or": lambda form, depth: self.any_of(self._each(form, depth)),
            "tag": self._tag,
            "triggered_tags": lambda form, depth: self.triggered(
                self.entries(form, "tags"), self.entries(form, "triggers"), form, depth
            ),
            "tags_with_separator": self._separated,
        }

    def format(self, value: object, at: str, depth: int) -> str:
        """An expression for a format of any type."""
        form = self.members(value, at)
        kind = form.get("type")
        if not isinstance(kind, str) or kind not in self._formats:
            raise self.error(
                f"{at}: type is {str(kind)[:40]!r}, it must be one of {', '.join(self._formats)}"
            )
        if depth > MAX_NESTING:
            raise self.error(f"nests formats more than {MAX_NESTING} levels deep")
        self.only(form, "type", *_MEMBERS[kind])
        return self.rule(self._formats[kind](form, depth + 1))

    def triggered(self, tags: Sequence[object], triggers: Sequence[object], form: Json, depth: int) -> str:
        """Free text; wherever a trigger comes up in it, one of the tags that begin with it follows."""
        openings = self._openings(triggers)
        bodies: dict[str, list[str]] = {trigger: [] for trigger in openings}
        for value in tags:
            tag = self.members(value, "tags")
            begin = self.string(tag, "begin")
            trigger = next((trigger for trigger in openings if begin.startswith(trigger)), None)
            if trigger is None:
                raise self.error(f"the tag that begins with {begin[:80]!r} begins with none of the triggers")
            bodies[trigger].append(f"{self.text(begin[len(trigger) :])} {self._rest(tag, depth)}")
        unused = next((trigger for trigger, found in bodies.items() if not found), None)
        if unused is not None:
            raise self.error(f"no tag begins with the trigger {unused[:80]!r}")
        one = self.any_of(f"{openings[trigger]} {self.any_of(found)}" for trigger, found in bodies.items())
        needed, first = self.flag(form, "at_least_one"), self.flag(form, "stop_after_first")
        if first:
            return one if needed else self.any_of((one, "FREE"))
        return f"({one}){'+' if needed else '*'} FREE"

    def _openings(self, triggers: Sequence[object]) -> dict[str, str]:
        """For each trigger an expression for free text that ends with its first appearance."""
        found: dict[str, str] = {}
        for trigger in triggers:
            if not isinstance(trigger, str) or not trigger:
                raise self.error("triggers has an entry that is no text, or an empty one")
            if any(trigger in other or other in trigger for other in found):
                raise self.error(
                    f"the trigger {trigger[:80]!r} is a part of another one, or has it in itself"
                )
            first, *more = self._parts(trigger)
            if first in self._special_ids:
                found[trigger] = f"FREE {self.text(trigger)}"
            elif more:
                raise self.error(f"the trigger {trigger[:80]!r} has a special token after its beginning")
            else:
                found[trigger] = self.rule(f"/(?s:.*)/ {_quoted(trigger)}", "[lazy]")
        return found

    def _tag(self, form: Json, depth: int) -> str:
        return f"{self.text(self.string(form, 'begin'))} {self._rest(form, depth)}"

    def _rest(self, tag: Json, depth: int) -> str:
        """The content of a tag and its end."""
        self._tags += 1
        if self._tags > MAX_TAGS:
            raise self.error(f"it has more than {MAX_TAGS:,} tags")
        self.only(tag, "type", *_MEMBERS["tag"])
        content, end = self.members(tag.get("content"), "content"), self.string(tag, "end")
        kind = content.get("type")
        plain = end and not any(part in self._special_ids for part in self._parts(end))
        if kind in ("any_text", "regex") and plain:  # one lexeme: a greedy one would run over the end
            self.only(content, "type", *_MEMBERS[kind])
            if kind == "any_text":
                return self.rule(f"/(?s:.*)/ {_quoted(end)}", "[lazy]")
            return f"/({self._pattern(content)}){lark_regex(re.escape(end))}/"
        return f"{self.format(content, 'content', depth)} {self.text(end)}"

    def _separated(self, form: Json, depth: int) -> str:
        tags = [self.members(tag, "tags") for tag in self.entries(form, "tags")]
        one, between = (
            self.any_of(self._tag(tag, depth) for tag in tags),
            self.text(self.string(form, "separator")),
        )
        many = one if self.flag(form, "stop_after_first") else f"{one} ({between} {one})*"
        return many if self.flag(form, "at_least_one") else f"({many})?"

    def _schema(self, form: Json) -> str:
        if not isinstance(form.get("json_schema"), dict | bool):
            raise self.error("a schema is missing or none")
        closes = self._constraint.disable_additional_properties
        return "%json " + schema_text(
            form["json_schema"], param=self._name, disable_additional_properties=closes
        )

    def _pattern(self, form: Json) -> str:
        pattern = self.string(form, "pattern")
        self._patterns += 1
        if self._patterns > MAX_PATTERNS:
            raise self.error(f"it has more than {MAX_PATTERNS:,} patterns: join them with |, or split it")
        if nesting(pattern) > MAX_NESTING:
            raise self.error(f"a pattern nests brackets more than {MAX_NESTING} levels deep")
        return lark_regex(pattern)

    def _each(self, form: Json, depth: int) -> list[str]:
        return [self.format(element, "elements", depth) for element in self.entries(form, "elements")]

    def text(self, text: str) -> str:
        """An expression for exactly `text`."""
        written = [
            f"<[{self._special_ids[part]}]>" if part in self._special_ids else _quoted(part)
            for part in self._parts(text)
        ]
        return " ".join(written) if written else '""'

    def _parts(self, text: str) -> list[str]:
        return [part for part in (self._split.split(text) if self._split else [text]) if part]

    def rule(self, body: str, attributes: str = "") -> str:
        """Add a rule; its name."""
        self._rules.append(f"rule_{len(self._rules)}{attributes}: {body}")
        return f"rule_{len(self._rules) - 1}"

    def any_of(self, options: Any) -> str:
        """A rule for one of several expressions."""
        return self.rule(" | ".join(f"({option})" for option in options))

    def grammar(self, body: str) -> str:
        """All of it."""
        return "\n".join([f"start: {body}", *self._rules]) + "\n"

    @property
    def _name(self) -> str:
        return self._constraint.name

    def error(self, cause: str) -> Exception:
        """What to raise."""
        return self._constraint.error(f"is no structural tag: {cause}")

    def members(self, value: object, at: str) -> Json:
        """An object."""
        if not isinstance(value, dict):
            raise self.error(f"{at} is missing or no object".strip())
        return cast("Json", value)

    def only(self, form: Json, *known: str) -> None:
        """Refuse members that would have no effect."""
        unknown = next((name for name in form if name not in known), None)
        if unknown is not None:
            raise self.error(f"unknown member {unknown[:80]!r}; known: {', '.join(known)}")

    def entries(self, form: Json, name: str) -> list[object]:
        """A list with something in it."""
        value = form.get(name)
        if not isinstance(value, list) or not value:
            raise self.error(f"{name} is missing, empty or no list")
        return cast("list[object]", value)

    def string(self, form: Json, name: str) -> str:
        """A text."""
        if not isinstance(form.get(name), str):
            raise self.error(f"{name} is missing or no text")
        return form[name]

    def flag(self, form: Json, name: str) -> bool:
        """Whether something is asked for."""
        if form.get(name) not in (None, True, False):
            raise self.error(f"{name} must be true or false")
        return bool(form.get(name))


_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema",),
    "regex": ("pattern",),
    "any_text": (),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", "at_least_one", "stop_after_first"),
    "tags_with_separator": ("tags", "separator", "at_least_one", "stop_after_first"),
}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
