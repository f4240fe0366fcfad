"""A schema of all keywords as one of those that llguidance keeps."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from headrace.grammar.constraint import MAX_LEVELS
from headrace.grammar.schema.arrays import contained, unique
from headrace.grammar.schema.document import ROOT, Document
from headrace.grammar.schema.evaluation import with_unevaluated
from headrace.grammar.schema.keywords import IN_PLACE, LISTS, Node, Schema, Unsupported
from headrace.grammar.schema.negation import FIRST_CONTAINED, any_of, complement, negation
from headrace.grammar.schema.numbers import check_factors, with_bounds
from headrace.grammar.schema.objects import check_count, counted, dependent, is_counted, named
from headrace.grammar.schema.shape import all_disjoint
from headrace.grammar.schema.strings import translated, with_patterns

MAX_SCHEMAS: Final = 20_000
"""Schemas after rewriting; alternatives of alternatives multiply."""
MAX_DEPTH: Final = 256
_CLOSED: Final = "\0closed"
"""Marks a schema in place whose objects have no properties beside those listed."""
_REWRITTEN: Final = frozenset(
    {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "propertyNames", "oneOf"}
    | {"contains", "minContains", "maxContains", FIRST_CONTAINED, "uniqueItems", _CLOSED, "$ref"}
)
_POSITIONS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
)


class Rewriter:
    """Writes the schemas of a document. `closes`: objects that list properties have no others."""

    def __init__(self, document: Document, *, closes: bool) -> None:
        self._document, self._closes = document, closes
        self._pending: dict[str, Callable[[], Node]] = {}
        self._known: set[str] = set()
        self._count = self._deepest = 0
        self._factors: list[Any] = []
        self._decimals = not document.has_factors
        self.closed = False
        """Whether an object was closed that its schema leaves open."""
        self.left_open: list[str] = []
        """Places of objects that could not be closed."""

    def whole(self) -> Node:
        """The root, with the definitions that it needs. Raises Unsupported."""
        root = self._at_position(self._document.schema(ROOT), "#", 0)
        definitions: Schema = {}
        while self._pending:
            name, make = self._pending.popitem()
            definitions[name] = make()
        if len(definitions) * self._deepest > MAX_LEVELS:
            raise Unsupported(
                "$ref",
                "#",
                f"has {len(definitions):,} targets and {self._deepest} levels: targets times levels may be "
                f"{MAX_LEVELS:,}",
            )
        check_factors(self._factors)
        if isinstance(root, bool) or not definitions:
            return root
        return {**root, "$defs": definitions}

    # References.

    def _definition(self, kind: str, key: str) -> Node:
        """A reference to a schema of the document: in place, closed, or its complement."""
        target = self._document.schema(key)
        if isinstance(target, bool) or not target:
            return (target is False) if kind == "not" else target
        name = f"{key}-{kind}"
        if name not in self._known:
            self._known.add(name)
            at = self._document.places[key]

            def make() -> Node:
                node = self._document.schema(key)
                if kind == "not":
                    return self._node(negation(node, at), at, 1)
                return self._at_position(node, at, 1) if kind == "closed" else self._node(node, at, 1)

            self._pending[name] = make
        return {"$ref": f"#/$defs/{name}"}

    # Closing.

    def _at_position(self, node: Node, at: str, depth: int) -> Node:
        """A schema that is the first to apply to its instance: here objects are closed."""
        if not self._closes or isinstance(node, bool):
            return self._node(node, at, depth)
        if set(node) == {"$ref"}:
            return self._definition("closed", node["$ref"])
        if set(node) == {"allOf"} and len(node["allOf"]) == 1:
            return self._at_position(node["allOf"][0], at, depth)
        if "oneOf" in node and "anyOf" not in node and all_disjoint(node["oneOf"], self._document.schema):
            node = {("anyOf" if key == "oneOf" else key): value for key, value in node.items()}
        in_place = [keyword for keyword in IN_PLACE if keyword in node]
        if "additionalProperties" in node or "unevaluatedProperties" in node:
            return self._node(node, at, depth)
        if in_place == ["anyOf"] and "properties" not in node and "patternProperties" not in node:
            options: list[Node] = [
                {**option, _CLOSED: True} if isinstance(option, dict) else option for option in node["anyOf"]
            ]
            return self._node({**node, "anyOf": options}, at, depth)
        parts = list(self._parts(node))
        lists = any("properties" in part or "patternProperties" in part for part in parts)
        if not lists or any(
            "additionalProperties" in part or "unevaluatedProperties" in part for part in parts
        ):
            return self._node(node, at, depth)
        names = {name: True for part in parts for name in part.get("required", [])}
        if not in_place:
            self.closed |= bool(node.get("properties") or node.get("patternProperties"))
            properties = {
                **node.get("properties", {}),
                **{n: True for n in names if n not in node.get("properties", {})},
            }
            return self._node({**node, "properties": properties, "additionalProperties": False}, at, depth)
        closed = {**node, "unevaluatedProperties": False}
        if names:
            closed["allOf"] = [*node.get("allOf", []), {"properties": names}]
        try:
            out = self._node(closed, at, depth)
        except Unsupported:
            self.left_open.append(at)
            return self._node(node, at, depth)
        self.closed = True
        return out

    @contextmanager
    def _leaving_open(self) -> Generator[None]:
        """Objects inside are not closed: they belong to conditions, or are described elsewhere, too."""
        closes, self._closes = self._closes, False
        try:
            yield
        finally:
            self._closes = closes

    def _parts(self, node: Node, depth: int = 0) -> Any:
        """All schemas that may apply in place."""
        if isinstance(node, bool) or depth > 8:
            return
        yield node
        inner: list[Node] = [*node.get("allOf", []), *node.get("anyOf", []), *node.get("oneOf", [])]
        inner += [node[keyword] for keyword in ("if", "then", "else") if keyword in node]
        inner += node.get("dependentSchemas", {}).values()
        if "$ref" in node:
            inner.append(self._document.schema(node["$ref"]))
        for entry in inner:
            yield from self._parts(entry, depth + 1)

    # Rewriting.

    def _node(self, node: Node, at: str, depth: int) -> Node:
        self._count += 1
        self._deepest = max(self._deepest, depth)
        if self._count > MAX_SCHEMAS or depth > MAX_DEPTH:
            raise Unsupported("anyOf", at, f"and others come to more than {MAX_SCHEMAS:,} schemas together")
        if isinstance(node, bool):
            return node
        if node.get(_CLOSED):
            return self._at_position({key: value for key, value in node.items() if key != _CLOSED}, at, depth)
        if "unevaluatedProperties" in node or "unevaluatedItems" in node:
            return self._node(with_unevaluated(node, self._document.schema, at), at, depth + 1)
        out: Schema = {}
        for keyword, value in node.items():
            if keyword not in _REWRITTEN:
                out[keyword] = self._entry(keyword, value, f"{at}/{keyword}", depth + 1)
        more = [self._node(entry, at, depth + 1) for entry in self._alternatives(node)]
        if "$ref" in node:
            more.insert(0, self._definition("plain", node["$ref"]))
        with self._leaving_open():
            if "not" in node:
                more.append(self._complement(node["not"], at, depth + 1))
            more += [self._node(entry, at, depth + 1) for entry in self._rewritten(node, at)]
        if is_counted(node):
            for keyword in ("minProperties", "maxProperties"):
                out.pop(keyword, None)
            more.append(self._node(counted(node, at), at, depth + 1))
        else:
            check_count(out, at)
        out = with_bounds(with_patterns(out, at), decimals=self._decimals)
        return _joined(out, more)

    def _rewritten(self, node: Schema, at: str) -> list[Node]:
        """What keywords that llguidance does not know come to, all to hold besides the others."""
        found: list[Node] = []
        if "if" in node and ("then" in node or "else" in node):
            passed: Node = {"allOf": [node["if"], node.get("then", True)]}
            found.append(any_of([passed, {"allOf": [complement(node["if"]), node.get("else", True)]}]))
        found += dependent(node)
        if "propertyNames" in node:
            found.append(named(node, self._document.schema, at))
        if "contains" in node:
            found.append(contained(node, at))
        if node.get("uniqueItems"):
            found.append(unique(node, self._document.schema, at))
        return [entry for entry in found if entry is not True]

    def _complement(self, node: Node, at: str, depth: int) -> Node:
        if isinstance(node, dict) and set(node) == {"$ref"}:
            return self._definition("not", node["$ref"])
        return self._node(negation(node, at), at, depth)

    def _alternatives(self, node: Schema) -> list[Node]:
        """`oneOf`: `anyOf`, each without all others where two may hold."""
        if "oneOf" not in node:
            return []
        entries: list[Node] = node["oneOf"]
        if all_disjoint(entries, self._document.schema):
            return [any_of(entries)]
        apart: list[Node] = [
            {"allOf": [entry, *(complement(other) for i, other in enumerate(entries) if i != index)]}
            for index, entry in enumerate(entries)
        ]
        return [any_of(apart)]

    def _entry(self, keyword: str, value: Any, at: str, depth: int) -> Any:
        inner = self._at_position if keyword in _POSITIONS else self._node
        if keyword == "multipleOf":
            self._factors.append(value)
        if keyword == "patternProperties":
            return {
                translated(name, keyword, at): inner(entry, f"{at}/{name}", depth)
                for name, entry in value.items()
            }
        if keyword == "properties":
            return {name: inner(entry, f"{at}/{name}", depth) for name, entry in value.items()}
        if keyword in LISTS:
            return [inner(entry, f"{at}/{index}", depth) for index, entry in enumerate(value)]
        if keyword in ("additionalProperties", "items"):
            return inner(value, at, depth)
        return value


def _joined(node: Schema, more: list[Node]) -> Node:
    """A schema with others that are to hold besides."""
    if any(entry is False for entry in more):
        return False
    further = [entry for entry in more if entry is not True and entry != {}]
    if not node and len(further) == 1:
        return further[0]
    return {**node, "allOf": [*node.get("allOf", []), *further]} if further else node
