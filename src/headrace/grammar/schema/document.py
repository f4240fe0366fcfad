"""A schema as it is written, read into one form: references resolved, old drafts' keywords as today's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import unquote, urljoin

from msgspec import Struct
from msgspec.structs import replace

from headrace.grammar.constraint import MAX_NESTING
from headrace.grammar.patterns import FORMAT_PATTERNS, NARROWER_FORMATS, NATIVE_FORMATS
from headrace.grammar.schema.keywords import (
    COUNTS,
    ENFORCED,
    IDENTIFIERS,
    LISTS,
    MAPS,
    NUMBERS,
    REFERENCES,
    SILENT_ANNOTATIONS,
    SINGLE,
    TYPES,
    MalformedSchema,
    Node,
    Schema,
    Unsupported,
    children,
)

_DRAFTS: Final = {
    **{f"http://json-schema.org/draft-0{number}/schema": number for number in (4, 6, 7)},
    **{f"https://json-schema.org/draft/{year}/schema": int(year[:4]) for year in ("2019-09", "2020-12")},
}
_NEWEST: Final = 2020
_LARGEST_EXACT: Final = 2**53  # numbers become float64
_UNSPELLABLE: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
ROOT: Final = "root"


class _Place(Struct, frozen=True):
    """A schema with what its references depend on: the base URI and the draft."""

    value: object
    base: str
    draft: int
    at: str
    scope: tuple[str, ...] = ()
    """Base URIs of the resources that were entered on the way, where `$dynamicRef` depends on them."""
    identified: bool = False
    """Whether `base`, `draft` and `scope` are already those that the schema itself declares."""

    def inside(self, value: object, at: str) -> _Place:
        """A schema or another value in this one."""
        return replace(self, value=value, at=at, identified=False)


class Document:
    """The schemas of a document by key: `ROOT`, and one for each target of a reference.

    Where something has no effect on validation, its name is noted in `annotations`.
    """

    def __init__(self, root: object) -> None:
        self.annotations: dict[str, None] = {}
        self.has_factors = False
        """Whether some schema has `multipleOf`."""
        self.places: dict[str, str] = {}
        """Where the schema of each key stands."""
        self._by_uri: dict[tuple[str, str], _Place] = {}
        self._dynamic: set[tuple[str, str]] = set()
        self._pending: dict[str, _Place] = {}
        self._read: dict[str, Node] = {}
        self._keys: dict[tuple[str, int, tuple[str, ...]], str] = {}
        place = _Place(root, "", _NEWEST, "#")
        self._by_uri["", ""] = place
        self._index(place, 0)
        self._add(ROOT, self._by_uri["", ""])

    @property
    def references(self) -> int:
        """How many definitions are referenced."""
        return len(self.places) - 1

    def schema(self, key: str) -> Node:
        """The schema of a key."""
        if key not in self._read:
            self._read[key] = self._node(self._pending.pop(key), 0)
        return self._read[key]

    def _add(self, key: str, place: _Place) -> None:
        self._pending[key] = place
        self.places[key] = place.at

    # What references may name.

    def _index(self, place: _Place, depth: int) -> None:
        if depth > MAX_NESTING:
            raise Unsupported("$ref", place.at, f"is missing: schemas nest deeper than {MAX_NESTING} levels")
        node = _object(place.value)
        if node is None:
            return
        self.has_factors |= "multipleOf" in node
        place = self._identified(place, node)
        for path, child in children(node):
            self._index(place.inside(child, f"{place.at}/{path}"), depth + 1)

    def _identified(self, place: _Place, node: Schema) -> _Place:
        """The place with the base and draft that the schema declares; its identifiers are noted."""
        if place.identified:  # a relative $id counts once
            return place
        draft = _draft(node, place, self._note)
        base, identifier = place.base, node.get("id" if draft == 4 else "$id")
        if isinstance(identifier, str) and not (draft <= 7 and "$ref" in node):
            whole, _, fragment = identifier.partition("#")
            base = urljoin(base, whole) if whole else base
            place = _Place(node, base, draft, place.at, place.scope, identified=True)
            self._by_uri[base, ""] = self._by_uri.get((base, ""), place) if not whole else place
            if fragment:
                self._by_uri[base, fragment] = place
        scope = (*place.scope, base) if base not in place.scope else place.scope
        place = _Place(node, base, draft, place.at, scope, identified=True)
        if place.at == "#":
            self._by_uri["", ""] = place
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                self._by_uri[base, node[keyword]] = place
        if isinstance(node.get("$dynamicAnchor"), str):
            self._dynamic.add((base, node["$dynamicAnchor"]))
        if node.get("$recursiveAnchor") is True:
            self._dynamic.add((base, ""))
        return place

    def _resolve(self, reference: str, place: _Place, keyword: str) -> _Place:
        whole, _, fragment = reference.partition("#")
        base, fragment = urljoin(place.base, whole) if whole else place.base, unquote(fragment)
        found = self._by_uri.get((base, fragment))
        if found is None and (not fragment or fragment.startswith("/")):
            resource = self._by_uri.get((base, ""))
            found = self._pointed(resource, fragment) if resource is not None else None
        if found is None:
            raise Unsupported(
                keyword, place.at, f"is {reference[:80]!r}, which is not in the schema: nothing is fetched"
            )
        return found

    def _pointed(self, place: _Place, pointer: str) -> _Place | None:
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            value = place.value
            if isinstance(value, dict) and name in value:
                inner: object = cast("Schema", value)[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(cast("list[Any]", value)):
                inner = cast("list[object]", value)[int(name)]
            else:
                return None
            place = place.inside(inner, f"{place.at}/{part}")
            if isinstance(inner, dict):
                place = self._identified(place, cast("Schema", inner))
        return place

    def _reference(self, keyword: str, value: object, place: _Place) -> str:
        """The key of what a reference names."""
        if not isinstance(value, str):
            raise Unsupported(keyword, place.at, f"is {str(value)[:40]!r}, it must be a text")
        target = self._resolve(value, place, keyword)
        anchor = value.partition("#")[2] if keyword == "$dynamicRef" else ""
        if keyword != "$ref" and (target.base, anchor) in self._dynamic and _is_anchored(target, anchor):
            outermost = next(base for base in (*place.scope, target.base) if (base, anchor) in self._dynamic)
            target = self._by_uri[outermost, anchor]
        scope = tuple(dict.fromkeys((*place.scope, target.base))) if self._dynamic else ()
        target = replace(target, scope=scope)
        # Equal constants may be one object: the place tells them apart, too.
        name = (target.at, id(target.value), scope)
        if name not in self._keys:
            self._keys[name] = f"d{len(self._keys)}"
            self._add(self._keys[name], target)
        return self._keys[name]

    # Reading.

    def _node(self, place: _Place, depth: int) -> Node:
        value, at = place.value, place.at
        if depth > MAX_NESTING:
            raise Unsupported("$ref", at, f"is missing: schemas nest deeper than {MAX_NESTING} levels")
        if isinstance(value, bool):
            return value
        node = _object(value)
        if node is None:
            raise MalformedSchema(
                f"has {str(value)[:40]!r} at {at[:200]}, where a schema (an object or a boolean) must stand"
            )
        place = self._identified(place, node)
        if place.draft <= 7 and "$ref" in node:  # whatever is beside it has no effect
            self._note_all(key for key in node if key in ENFORCED and key != "$ref")
            node = {"$ref": node["$ref"]}
        node = _renamed(node, place.draft, at, self._note)
        out: Schema = {}
        for keyword, entry in node.items():
            if keyword in REFERENCES:
                self._add_reference(out, self._reference(keyword, entry, place))
            elif keyword == "format" and isinstance(entry, str) and not _is_checked(entry):
                self._note(f"format {entry!r}")
            elif keyword in ENFORCED:
                out[keyword] = self._entry(keyword, entry, place, depth)
            elif keyword not in IDENTIFIERS and keyword not in SILENT_ANNOTATIONS:
                self._note(keyword)
        return out

    @staticmethod
    def _add_reference(out: Schema, key: str) -> None:
        if "$ref" in out:
            out["allOf"] = [*out.get("allOf", []), {"$ref": key}]
        else:
            out["$ref"] = key

    def _entry(self, keyword: str, value: Any, place: _Place, depth: int) -> Any:
        at = f"{place.at}/{keyword}"

        def inner(entry: object, name: object) -> Node:
            return self._node(place.inside(entry, f"{at}/{name}"), depth + 1)

        if keyword in MAPS:
            entries = cast("Schema", _of_type(keyword, place.at, value, dict))
            for name in entries:
                _check_value(keyword, name, place.at, 0)
            return {name: inner(entry, name) for name, entry in entries.items()}
        if keyword in LISTS:
            listed = cast("list[object]", _of_type(keyword, place.at, value, list))
            if not listed and keyword != "prefixItems":
                raise Unsupported(keyword, place.at, "is empty: leave it out")
            return [inner(entry, index) for index, entry in enumerate(listed)]
        if keyword in SINGLE:
            return self._node(place.inside(value, at), depth + 1)
        if keyword not in NUMBERS or keyword == "multipleOf":  # bounds have an exact neighbor, see numbers.py
            _check_value(keyword, value, place.at, depth)
        return _checked(keyword, value, place.at)

    def _note(self, keyword: str) -> None:
        self.annotations[keyword] = None

    def _note_all(self, keywords: Any) -> None:
        for keyword in keywords:
            self._note(keyword)


def _object(value: object) -> Schema | None:
    return cast("Schema", value) if isinstance(value, dict) else None


def _is_anchored(place: _Place, anchor: str) -> bool:
    node = _object(place.value) or {}
    return node.get("$dynamicAnchor") == anchor if anchor else node.get("$recursiveAnchor") is True


def _is_checked(name: object) -> bool:
    return name in FORMAT_PATTERNS or name in NATIVE_FORMATS or name in NARROWER_FORMATS


def _draft(node: Schema, place: _Place, note: Callable[[str], None]) -> int:
    declared = node.get("$schema")
    if declared is None:
        return place.draft
    name = str(declared).removesuffix("#")
    if "draft-03" in name:
        raise Unsupported("$schema", place.at, f"is {name[:80]!r}: drafts from 4 on are supported")
    draft = _DRAFTS.get(name.replace("https://json-schema.org/draft-", "http://json-schema.org/draft-"))
    if draft is None:
        note(f"$schema {name[:80]!r} (read as draft 2020-12)")
    return _NEWEST if draft is None else draft


def _renamed(node: Schema, draft: int, at: str, note: Callable[[str], None]) -> Schema:
    """The node with keywords of older drafts as those of 2020-12."""
    out = dict(node)
    if draft < _NEWEST and "prefixItems" in out:
        note("prefixItems")
        del out["prefixItems"]
    extra = out.pop("additionalItems", None)
    if isinstance(out.get("items"), list):
        if "prefixItems" in out:
            raise Unsupported("prefixItems", at, "stands beside `items` as a list: use one of them")
        listed = out.pop("items")
        out["prefixItems"] = listed
        if extra is not None:
            out["items"] = extra
    elif extra is not None:
        note("additionalItems")  # without `items` as a list it has no effect
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = out.get(keyword)
        if isinstance(flag, bool):  # draft 4
            del out[keyword]
            if flag and bound in out:
                out[keyword] = out.pop(bound)
    dependencies = out.pop("dependencies", None)
    if isinstance(dependencies, dict):
        for name, wanted in cast("Schema", dependencies).items():
            keyword = "dependentRequired" if isinstance(wanted, list) else "dependentSchemas"
            out[keyword] = {**out.get(keyword, {}), name: wanted}
    return out


def _checked(keyword: str, given: object, at: str) -> Any:
    """A value of a keyword without schemas in it, of the type that it must have."""
    value: Any = given
    if keyword in COUNTS:
        count: object = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise Unsupported(keyword, at, f"is {str(value)[:40]!r}, it must be a count")
        return count
    if keyword in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unsupported(keyword, at, f"is {str(value)[:40]!r}, it must be a number")
        if keyword == "multipleOf" and value <= 0:
            raise Unsupported(keyword, at, f"is {value}, it must be more than 0")
    elif keyword == "type":
        names = _listed(given)
        unknown = next((name for name in names if name not in TYPES), None)
        if unknown is not None or not names:
            raise Unsupported(keyword, at, f"is {str(given)[:40]!r}; types are {', '.join(TYPES)}")
    elif keyword == "dependentRequired":
        for name, wanted in cast("Schema", _of_type(keyword, at, value, dict)).items():
            _names(keyword, f"{at}/{keyword}/{name}", wanted)
    elif keyword == "required":
        _names(keyword, at, value)
    elif keyword == "uniqueItems" and not isinstance(value, bool):
        raise Unsupported(keyword, at, f"is {str(value)[:40]!r}, it must be true or false")
    elif keyword in ("pattern", "format"):
        return _text(keyword, at, value)
    elif keyword == "enum":
        _of_type(keyword, at, value, list)
    return given


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _text(keyword: str, at: str, value: object) -> str:
    text = cast("str", _of_type(keyword, at, value, str))
    return NARROWER_FORMATS.get(text, text) if keyword == "format" else text


def _names(keyword: str, at: str, value: object) -> None:
    names = cast("list[object]", _of_type(keyword, at, value, list))
    if not all(isinstance(name, str) for name in names):
        raise Unsupported(keyword, at, "has a name that is no text")


def _check_value(keyword: str, value: object, at: str, depth: int) -> None:
    """Refuse what would be enforced a little beside: numbers that float64 does not hold, and characters
    that have only a \\u spelling (see OPTIONS)."""
    if depth > MAX_NESTING:
        raise Unsupported(keyword, at, f"is nested deeper than {MAX_NESTING} levels")
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
        raise Unsupported(keyword, at, f"has {str(value)[:40]}: beyond 2^53 numbers are not exact")
    if isinstance(value, str) and _UNSPELLABLE.search(value):
        raise Unsupported(keyword, at, "has control characters, which are not supported")
    entries: list[object] = []
    if isinstance(value, dict):
        entries = [*cast("Schema", value), *cast("Schema", value).values()]
    elif isinstance(value, list):
        entries = cast("list[object]", value)
    for entry in entries:
        _check_value(keyword, entry, at, depth + 1)


def _of_type(keyword: str, at: str, value: Any, kind: type) -> Any:
    if isinstance(value, kind):
        return value
    kinds = {dict: "an object", list: "a list", str: "a text"}
    raise Unsupported(keyword, at, f"is {str(value)[:40]!r}, it must be {kinds[kind]}")
