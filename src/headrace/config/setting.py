"""One row of the table of settings: what flags, variables, headrace.toml, checks and the docs read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_type_hints

from msgspec import Struct
from msgspec.structs import fields, replace

from headrace.config.values import Values
from headrace.errors import UsageError

PREFIX = "HEADRACE_"
Scope = Literal["server", "model", "request"]


class Setting(Struct, frozen=True, kw_only=True):
    """A setting as it is declared in the annotation of its field; `table_of` fills in name and default.

    `scopes` say where it can be given: `server` for the whole process (flag, variable, headrace.toml),
    `model` also for one model (its table in headrace.toml), `request` also with a request.
    `aliases` are further flags, those that users of other servers type.
    """

    help: str
    values: Values
    shown_default: str = ""
    scopes: tuple[Scope, ...] = ("server",)
    aliases: tuple[str, ...] = ()
    name: str = ""
    default: Any = None

    @property
    def flag(self) -> str:
        """The command-line option, e.g. `--kv-cache-dtype`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, e.g. `HEADRACE_KV_CACHE_DTYPE`."""
        return PREFIX + self.name.upper()

    def parse(self, value: object, where: str) -> object:
        """The value read from text or TOML; UsageError says `where` it stood and what it should be."""
        try:
            return self.values.parse(value)
        except ValueError as error:
            shown = "a value that" if self.name.endswith("api_key") else f"{value!r}, which"
            raise UsageError(f"{where} is {shown} is not {error}", param=self.name) from error

    def check(self, value: object) -> None:
        """UsageError where a value of Python is none of this setting's; None is the default's."""
        if value is None and self.default is None:
            return
        try:
            self.values.check(value)
        except ValueError as error:
            raise UsageError(f"{self.name} is {value!r}, it must be {error}", param=self.name) from error


def table_of(kind: type[Struct]) -> dict[str, Setting]:
    """The rows of a class whose fields are annotated with settings, by name, in the order of the fields."""
    hints = get_type_hints(kind, include_extras=True)
    rows: dict[str, Setting] = {}
    for field in fields(kind):
        for row in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(row, Setting):
                shown = row.shown_default or str(field.default)
                rows[field.name] = replace(row, name=field.name, default=field.default, shown_default=shown)
    return rows


def markdown(table: Mapping[str, Setting]) -> str:
    """A table of settings in Markdown, for the documentation."""
    lines = [
        "| flag | variable | in headrace.toml | values | default | scopes | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    for s in table.values():
        flags = ", ".join(f"`{flag}`" for flag in (s.flag, *s.aliases))
        values, scopes = s.values.shown.replace("|", ", "), ", ".join(s.scopes)
        lines.append(
            f"| {flags} | `{s.variable}` | `{s.name}` | {values} | {s.shown_default} | {scopes} | {s.help} |"
        )
    return "\n".join(lines)
