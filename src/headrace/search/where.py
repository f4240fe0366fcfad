"""Conditions on documents: a small language, and OpenAI's filters, both as one tree and then as SQL with
parameters.

    vip AND price < 20 AND region IN ('eu', 'us') AND NOT archived = true AND author IS NOT NULL

Values never become SQL text; names of attributes are parameters, too.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeVar, cast

from msgspec import Struct

from headrace.errors import InvalidRequest

Value = str | int | float | bool
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Sql = tuple[str, list[str | int | float]]
T = TypeVar("T")

KINDS = ("string", "number", "boolean")
MAX_LENGTH = 10_000
MAX_DEPTH = 50
MAX_NAME = 256
MAX_PARTS = 200
"""Comparisons of a condition, of which SQLite takes some hundred."""
MAX_VALUES = 1000
MAX_DIGITS = 4000
"""Of whole numbers; Python reads no more of them, and SQLite 19."""
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>'(?:[^']|'')*') | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<quoted>"(?:[^"]|"")+") | (?P<word>[^\W\d]\w*) | (?P<sign><=|>=|!=|<>|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_OPERATORS: Mapping[str, Operator] = {
    "=": "=",
    "==": "=",
    "!=": "!=",
    "<>": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "eq": "=",
    "ne": "!=",
    "lt": "<",
    "lte": "<=",
    "gt": ">",
    "gte": ">=",
}
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})


class Comparison(Struct, frozen=True):
    """An attribute compared with a value. One that a document does not have meets none but !=."""

    name: str
    operator: Operator
    value: Value


class Membership(Struct, frozen=True):
    """An attribute that is one of several values."""

    name: str
    values: tuple[Value, ...]


class Presence(Struct, frozen=True):
    """An attribute that a document has, or has not."""

    name: str
    there: bool


class Truth(Struct, frozen=True):
    """An attribute that is true."""

    name: str


class Negation(Struct, frozen=True):
    """The other documents."""

    of: Condition


class Junction(Struct, frozen=True):
    """All of several conditions, or any of them."""

    every: bool
    of: tuple[Condition, ...]


Leaf = Comparison | Membership | Presence | Truth
Condition = Leaf | Negation | Junction


def read_where(text: str) -> Condition:
    """The condition that a text says; InvalidRequest with the place where it says none."""
    if len(text) > MAX_LENGTH:
        raise _wrong(f"it has {len(text):,} characters, at most {MAX_LENGTH:,} are read")
    if not is_unicode(text):
        raise _wrong("it has bytes that are no UTF-8")
    return _Parser(text).whole()


def is_unicode(text: str) -> bool:
    """Whether it has no half of a surrogate pair, which names of files may have and stores do not take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_filter(given: object) -> Condition:
    """OpenAI's filter of vector stores; InvalidRequest where it is none."""
    return _filter(given, 0, itertools.count(1))


def _filter(given: object, depth: int, parts_so_far: Iterator[int]) -> Condition:
    if depth > MAX_DEPTH:
        raise _wrong(f"it is more than {MAX_DEPTH} deep", "filters")
    if next(parts_so_far) > MAX_PARTS:
        raise _wrong(f"it has more than {MAX_PARTS} parts", "filters")
    fields = cast("Mapping[str, object]", given if isinstance(given, Mapping) else {})
    kind, key, value = fields.get("type"), fields.get("key"), fields.get("value")
    if kind in ("and", "or"):
        parts = fields.get("filters")
        if not isinstance(parts, list) or not parts:
            raise _wrong(f"{kind} has a list `filters` with at least one", "filters")
        found = tuple(_filter(one, depth + 1, parts_so_far) for one in cast("list[object]", parts))
        return Junction(kind == "and", found)
    if not isinstance(key, str) or not isinstance(kind, str):
        raise _wrong(
            "it has a type (eq, ne, gt, gte, lt, lte, in, nin, and, or), a key and a value", "filters"
        )
    if kind in ("in", "nin"):
        values = cast("list[object]", value) if isinstance(value, list) else []
        if not 1 <= len(values) <= MAX_VALUES or not all(
            isinstance(one, str | int | float) for one in values
        ):
            raise _wrong(f"{kind} has a list of 1 to {MAX_VALUES:,} texts or numbers as value", "filters")
        one_of = Membership(key, tuple(map(bounded, cast("list[Value]", values))))
        return one_of if kind == "in" else Negation(one_of)
    if kind not in _OPERATORS or not isinstance(value, str | int | float):
        raise _wrong(
            f"{kind!r:.40} of {key!r:.60} is no comparison with a text, a number or a boolean", "filters"
        )
    return Comparison(key, _OPERATORS[kind], bounded(value))


def folded(
    condition: Condition,
    joined: Callable[[bool, list[T]], T],
    negated: Callable[[T], T],
    leaf: Callable[[Leaf], T],
) -> T:
    """What a condition is in another form: its leaves, what is not, and all or any of several."""

    def fold(one: Condition) -> T:
        match one:
            case Junction(every, parts):
                return joined(every, [fold(part) for part in parts])
            case Negation(inner):
                return negated(fold(inner))
            case _:
                return leaf(one)

    return fold(condition)


def kind_of(value: Value) -> str:
    """JSON's name of a value's type: values of one are compared."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def attributes_in(condition: Condition) -> frozenset[str]:
    """The names of attributes that a condition is about."""
    return folded(
        condition,
        lambda _, parts: frozenset[str]().union(*parts),
        lambda part: part,
        lambda one: frozenset((one.name,)),
    )


def sql_folded(condition: Condition, leaf: Callable[[Leaf], tuple[str, list[T]]]) -> tuple[str, list[T]]:
    """A condition as SQL with parameters, of which `leaf` makes the parts."""

    def joined(every: bool, parts: list[tuple[str, list[T]]]) -> tuple[str, list[T]]:
        text = (" AND " if every else " OR ").join(text for text, _ in parts)
        return f"({text})", [value for _, values in parts for value in values]

    return folded(condition, joined, lambda part: (f"(NOT {part[0]})", part[1]), leaf)


def sql_of(condition: Condition, column: str) -> Sql:
    """The condition over a column of JSON objects, and its parameters. It is never NULL."""
    return sql_folded(condition, lambda leaf: _leaf(leaf, column))


def _leaf(leaf: Leaf, column: str) -> Sql:
    match leaf:
        case Presence(name, there):
            return f"(json_type({column}, ?) IS {'NOT ' if there else ''}NULL)", [path_of(name)]
        case Truth(name):
            return f"(coalesce(json_type({column}, ?) = 'true', 0))", [path_of(name)]
        case Membership(name, values):
            return _membership(column, name, values)
        case Comparison(name, operator, value):
            return _comparison(column, name, operator, value)


def _comparison(column: str, name: str, operator: Operator, value: Value) -> Sql:
    """Only values of one type are compared: SQLite would find every text larger than every number."""
    path = path_of(name)
    given = int(value) if isinstance(value, bool) else value
    typed = f"coalesce(json_type({column}, ?) IN ({_kinds(value)}), 0)"
    if operator == "!=":
        return f"(NOT {typed} OR json_extract({column}, ?) <> ?)", [path, path, given]
    return f"({typed} AND json_extract({column}, ?) {operator} ?)", [path, path, given]


def _membership(column: str, name: str, values: tuple[Value, ...]) -> Sql:
    path, found, given = path_of(name), list[str](), list[str | int | float]()
    for kinds, own in _by_kind(values):
        marks = ", ".join("?" * len(own))
        typed = f"coalesce(json_type({column}, ?) IN ({kinds}), 0)"
        found.append(f"({typed} AND json_extract({column}, ?) IN ({marks}))")
        given += [path, path, *own]
    return f"({' OR '.join(found)})", given


def _by_kind(values: tuple[Value, ...]) -> Iterator[tuple[str, list[str | int | float]]]:
    """JSON's names of the types of values, and the values of these."""
    for kinds in ("'text'", "'integer', 'real'", "'true', 'false'"):
        own = [value for value in values if _kinds(value) == kinds]
        if own:
            yield kinds, [int(value) if isinstance(value, bool) else value for value in own]


def _kinds(value: Value) -> str:
    if isinstance(value, bool):
        return "'true', 'false'"
    return "'text'" if isinstance(value, str) else "'integer', 'real'"


def path_of(name: str) -> str:
    """Where SQLite finds an attribute: a name in quotes, in which it knows no escapes."""
    return f'$."{checked_attribute(name)}"'


def is_attribute(name: str) -> bool:
    """Whether a condition can be about an attribute of that name."""
    return '"' not in name and name.isprintable() and 1 <= len(name) <= MAX_NAME


def checked_attribute(name: str) -> str:
    """A name of an attribute; InvalidRequest for what is none."""
    if not is_attribute(name):
        raise _wrong(f"{name[:60]!r} is no name: it has up to {MAX_NAME} printable characters and no quotes")
    return name


class _Parser:
    """Recursive descent; NOT binds closer than AND, and AND than OR."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self._values, self._parts = text, 0, 0, 0
        self._kind, self._token = "", ""
        self._advance()

    def whole(self) -> Condition:
        found = self._any(0)
        if self._kind != "end":
            raise self._expected("AND, OR or the end")
        return found

    def _any(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise _wrong(f"it is more than {MAX_DEPTH} deep")
        parts = [self._all(depth)]
        while self._takes("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Junction(False, tuple(parts))

    def _all(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._takes("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else Junction(True, tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise _wrong(f"it is more than {MAX_DEPTH} deep")
        if self._takes("not"):
            return Negation(self._one(depth + 1))
        if self._takes("("):
            found = self._any(depth + 1)
            self._needs(")")
            return found
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _wrong(f"it has more than {MAX_PARTS} comparisons")
        return self._about(self._name())

    def _about(self, name: str) -> Condition:
        if self._takes("is"):
            absent = not self._takes("not")
            self._needs("null")
            return Presence(name, not absent)
        negated = self._takes("not")
        if negated or (self._token.lower() == "in" and self._kind == "word"):
            self._needs("in")
            found = Membership(name, self._list())
            return Negation(found) if negated else found
        if self._kind == "sign" and self._token in _OPERATORS:
            operator = _OPERATORS[self._token]
            self._advance()
            return Comparison(name, operator, self._value())
        return Truth(name)

    def _list(self) -> tuple[Value, ...]:
        self._needs("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._needs(")")
        return tuple(values)

    def _name(self) -> str:
        token, kind = self._token, self._kind
        if kind == "quoted":
            token = token[1:-1].replace('""', '"')
        elif kind != "word" or token.lower() in _WORDS:
            raise self._expected("the name of an attribute")
        self._advance()
        return token

    def _value(self) -> Value:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _wrong(f"it has more than {MAX_VALUES:,} values")
        token, kind = self._token, self._kind
        if kind == "text":
            value: Value = token[1:-1].replace("''", "'")
        elif kind == "number":
            value = _number(token)
        elif kind == "word" and token.lower() in ("true", "false"):
            value = token.lower() == "true"
        else:
            raise self._expected("a value: 'text', a number, true or false")
        self._advance()
        return value

    def _takes(self, wanted: str) -> bool:
        if self._kind not in ("word", "sign") or self._token.lower() != wanted:
            return False
        self._advance()
        return True

    def _needs(self, wanted: str) -> None:
        if not self._takes(wanted):
            raise self._expected(wanted.upper())

    def _advance(self) -> None:
        self._place += len(self._token)
        rest = self._text[self._place :]
        self._place += len(rest) - len(rest.lstrip())
        if self._place == len(self._text):
            self._kind, self._token = "end", ""
            return
        found = _TOKEN.match(self._text, self._place)
        if found is None:
            raise self._expected("a name, a value or a sign")
        kind = found.lastgroup
        assert kind is not None
        self._kind, self._token = kind, found[kind]

    def _expected(self, what: str) -> InvalidRequest:
        seen = self._text[self._place : self._place + 20]
        return _wrong(f"at character {self._place + 1} {what} must stand, not {seen!r}")


def _number(token: str) -> int | float:
    if any(character in ".eE" for character in token) or len(token) > MAX_DIGITS:
        return float(token)
    value = bounded(int(token))
    assert isinstance(value, int | float)
    return value


def bounded(value: Value) -> Value:
    """A value as SQLite takes it, whose whole numbers have 64 bits."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _wrong(cause: str, param: str = "where") -> InvalidRequest:
    return InvalidRequest(
        f"{param} cannot be read: {cause}. Write, for example: vip = true AND price < 20", param=param
    )
