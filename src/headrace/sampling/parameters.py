"""One row of the table of sampling parameters, which checks, flags, bodies, options and the docs read."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from headrace.errors import InvalidRequest

MAX_CHARACTERS = 2048  # of all texts of a parameter: each costs memory for every request in the queue

Kind = Literal["integer", "number", "switch", "texts", "ids", "biases", "switch or never"]

_WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Mapping: "a mapping",
}
_KINDS: Mapping[object, Kind] = {
    int: "integer",
    float: "number",
    bool: "switch",
    tuple[str, ...]: "texts",
    tuple[int, ...]: "ids",
    Mapping[int, float]: "biases",
    bool | Literal["never"]: "switch or never",
}


class Parameter(Struct, frozen=True):
    """A sampling parameter as it stands in the annotation of its field; `table_of` fills in the rest.

    `low` and `high` bound a number, `above_low` leaves out `low` itself; `most` is the largest number of
    entries. A parameter that has no effect on beam search (not `beams`), or none with mirostat, either,
    because it bounds which tokens can be drawn (`truncates`), must be at its default there, or `also_off`,
    and a model's own default gives way. `ollama` is its name among Ollama's options, `llama_cpp` the one in
    llama.cpp's bodies, where that is another; `flag` its option on the command line, None where it has none.
    """

    help: str
    low: float | None = None
    high: float | None = None
    above_low: bool = False
    most: int | None = None
    also_off: float | None = None
    truncates: bool = False
    beams: bool = True
    ollama: str | None = None
    llama_cpp: str = ""
    flag: str | None = ""
    name: str = ""
    kind: Kind = "number"
    optional: bool = False
    default: Any = None

    @property
    def range(self) -> str:
        """The values it takes, e.g. `[0.0, 100.0]`; empty where there is no bound."""
        if self.low is None:
            return "" if self.most is None else f"up to {self.most:,}"
        return f"{'(' if self.above_low else '['}{self.low}, {self.high}]"

    @property
    def off(self) -> tuple[object, ...]:
        """The values with which it has no effect."""
        return (self.default,) if self.also_off is None else (self.default, self.also_off)

    @property
    def is_list(self) -> bool:
        """Whether its value is a tuple."""
        return self.kind in ("texts", "ids")

    def check(self, value: Any) -> None:
        """InvalidRequest, which names the parameter, for a value that it does not take."""
        if value is None and self.optional:
            return
        match self.kind:
            case "integer":
                self._number(value, int)
            case "number":
                self._number(value, float)
            case "switch":
                self._type(value, bool)
            case "switch or never":
                if value != "never":
                    self._type(value, bool)
            case "texts":
                self._texts(value)
            case "ids":
                self._ids(value)
            case "biases":
                self._biases(value)

    def _type(self, value: object, kind: type) -> None:
        """Refuse a value of another type, which only the kernels would find; True is no number."""
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self._error(f"is {str(value)[:80]!r}, it must be {_WORDS[kind]}", "invalid_type")

    def _number(self, value: Any, kind: type) -> None:
        """Refuse NaN, too."""
        self._type(value, kind)
        assert self.low is not None and self.high is not None
        if not self.low <= value <= self.high or (self.above_low and value == self.low):
            raise self._error(f"is {str(value)[:40]}, it must be in {self.range}")

    def _tuple(self, values: object, kind: type) -> tuple[Any, ...]:
        if not isinstance(values, tuple):
            raise self._error(f"is {str(values)[:80]!r}, it must be a tuple", "invalid_type")
        for value in cast("tuple[object, ...]", values):
            self._type(value, kind)
        return cast("tuple[Any, ...]", values)

    def _texts(self, values: object) -> None:
        texts = self._tuple(values, str)
        assert self.most is not None
        if len(texts) > self.most or "" in texts:
            raise self._error(f"takes up to {self.most} non-empty strings, got {len(texts)}")
        characters = sum(map(len, texts))
        if characters > MAX_CHARACTERS:
            raise self._error(f"has {characters:,} characters, at most {MAX_CHARACTERS:,} are allowed")

    def _ids(self, values: object) -> None:
        entries = len(self._tuple(values, int))
        least = 1 if self.optional else 0  # where None means all, an empty list would mean none
        assert self.most is not None
        if not least <= entries <= self.most:
            allowed = f"{least} to {self.most:,}" if least else f"at most {self.most:,}"
            raise self._error(f"has {entries:,} entries, {allowed} are allowed")

    def _biases(self, values: Any) -> None:
        self._type(values, Mapping)
        assert self.low is not None and self.high is not None and self.most is not None
        if len(values) > self.most:
            raise self._error(f"has {len(values)} entries, at most {self.most} are allowed")
        for token, bias in values.items():
            self._type(token, int)
            self._type(bias, float)
            if token < 0 or not self.low <= bias <= self.high:
                raise InvalidRequest(
                    f"{self.name}[{token}] = {bias}: ids are >= 0 and biases between {self.low:g} and"
                    f" {self.high:g}",
                    param=self.name,
                    code="invalid_value",
                )

    def _error(self, text: str, code: str = "invalid_value") -> InvalidRequest:
        return InvalidRequest(f"{self.name} {text}", param=self.name, code=code)


def table_of(kind: type[Struct]) -> dict[str, Parameter]:
    """The rows of a class whose fields are all annotated with parameters, by name, in order."""
    hints = get_type_hints(kind, include_extras=True)
    rows: dict[str, Parameter] = {}
    for field in fields(kind):
        annotated, row = get_args(hints[field.name])
        optional = NoneType in get_args(annotated)
        default: Any = {} if field.default is NODEFAULT else field.default
        rows[field.name] = replace(
            row,
            name=field.name,
            kind=_KINDS[_without_none(annotated)],
            optional=optional,
            default=default,
            beams=row.beams and not row.truncates,
            llama_cpp=row.llama_cpp or field.name,
            flag="--" + field.name.replace("_", "-") if row.flag == "" else row.flag,
        )
    return rows


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) is None or NoneType not in get_args(annotation):
        return annotation
    [kind] = [part for part in get_args(annotation) if part is not NoneType]
    return kind


def markdown(table: Mapping[str, Parameter]) -> str:
    """A table of parameters in Markdown, for the documentation."""
    lines = [
        "| parameter | values | range | default | flag | Ollama | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in table.values():
        flag, ollama = (f"`{name}`" if name else "" for name in (p.flag, p.ollama))
        default = "" if p.default is None else f"`{p.default!r}`"
        lines.append(f"| `{p.name}` | {p.kind} | {p.range} | {default} | {flag} | {ollama} | {p.help} |")
    return "\n".join(lines)
