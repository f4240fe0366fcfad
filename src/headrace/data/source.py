"""What a connector makes of a dataset: SQL that opens it in a worker, and the relation that reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from headrace.config.datasets import DatasetSettings
from headrace.errors import UsageError


class Source(Struct, frozen=True, kw_only=True):
    """`statements` run first; `relation` stands behind FROM. `extensions` are those of DuckDB that it needs.

    `paths` and `folders` are all files it reads through DuckDB, or beginnings of URLs. `arrow` is a file of
    Arrow's format, which `relation` then names. `origin` is the one web server that it is read from; where it
    is given, PROXY in the statements is the address of a proxy to that.
    """

    relation: str
    extensions: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    arrow: str | None = None
    origin: str | None = None
    allow_private: bool = False


PROXY = "\0proxy\0"
"""In statements; no literal can have it."""


class Opened(Struct, frozen=True):
    """What a connector gets: the dataset's name, its settings, where it is, and its secret."""

    name: str
    settings: DatasetSettings
    location: str
    secret: str | None

    @property
    def attached(self) -> str:
        """The name under which a database of this dataset is attached; no dataset can have it."""
        return f"__source_{self.name}"

    @property
    def where(self) -> str:
        """The place in the settings, for errors."""
        return f"datasets.{self.name}"


Connect = Callable[[Opened], Source]


class Connector(Struct, frozen=True):
    """A kind of sources: `extensions` of DuckDB, and the extra that has them."""

    connect: Connect
    extensions: tuple[str, ...] = ()
    extra: str = "data"


def quoted(name: str) -> str:
    """A name as SQL's identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as SQL's literal; UsageError where it has a NUL, which no literal can."""
    if "\0" in text:
        raise UsageError("a value of a dataset has a NUL character")
    return "'" + text.replace("'", "''") + "'"


def qualified(location: str, where: str) -> str:
    """`schema.table` or `table`, quoted. Parts may be written in double quotes."""
    return ".".join(map(quoted, name_parts(location, where)))


def name_parts(location: str, where: str) -> list[str]:
    """The schema, if one is named, and the table of such a location."""
    parts = re.findall(r'\s*("(?:[^"]|"")+"|[^".]+)\s*(?:\.|$)', location)
    if not parts or len(parts) > 2 or '"' in re.sub(r'"(?:[^"]|"")+"', "", location):
        raise UsageError(f"{where}.from names {location!r}: write TABLE or SCHEMA.TABLE")
    return [
        part[1:-1].replace('""', '"') if part.startswith('"') else part.strip() for part in map(str, parts)
    ]


def split_table(opened: Opened) -> tuple[str, str]:
    """The file and the table of PATH#TABLE."""
    path, mark, table = opened.location.rpartition("#")
    if not mark or not path or not table:
        raise UsageError(f"{opened.where}.from names {opened.location!r}: write PATH#TABLE")
    return path, table


def server_fields(opened: Opened, port: int) -> Mapping[str, str]:
    """Host, port, user, database and password of a database server. The secret is a password or a URL."""
    settings = opened.settings
    found = {"host": settings.host, "port": str(settings.port or port)}
    found |= {"user": settings.user or "", "database": settings.database or ""}
    secret = opened.secret
    if secret is not None and "://" in secret:
        found |= _from_url(secret, opened.where)
    elif secret is not None:
        found["password"] = secret
    return {key: value for key, value in found.items() if value}


def _from_url(url: str, where: str) -> dict[str, str]:
    try:
        parts = urlsplit(url)
        port = str(parts.port or "")
    except ValueError:
        raise UsageError(f"{where}.secret holds no URL such as postgres://user:password@host/db") from None
    found = {"host": parts.hostname or "", "port": port, "database": unquote(parts.path.lstrip("/"))}
    found |= {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    return {key: value for key, value in found.items() if value}


def local_path(path: str) -> str:
    """A path of this machine, from its root; ~ is the home folder. Patterns stay patterns."""
    return str(Path(path).expanduser().absolute())


def attached_file(opened: Opened, extensions: tuple[str, ...], options: str) -> Source:
    """A table of a database that is a file of this machine, PATH#TABLE; `options` are those of ATTACH."""
    path, table = split_table(opened)
    name = quoted(opened.attached)
    return Source(
        relation=f"{name}.{qualified(table, opened.where)}",
        extensions=extensions,
        statements=(f"ATTACH {literal(local_path(path))} AS {name} ({options})",),
    )


def attached_server(opened: Opened, kind: str, port: int, first: tuple[str, ...] = ()) -> Source:
    """A table of a server of databases that DuckDB knows as `kind`. Its fields are in a secret, so that no
    name of a database shows them. The statements `first` come before it is attached."""
    fields = ", ".join(
        f"{key.upper()} {literal(value)}" for key, value in server_fields(opened, port).items()
    )
    name = quoted(opened.attached)
    return Source(
        relation=f"{name}.{qualified(opened.location, opened.where)}",
        extensions=(f"{kind}_scanner",),
        statements=(
            *first,
            f"CREATE SECRET {name} (TYPE {kind}, {fields})",
            f"ATTACH '' AS {name} (TYPE {kind}, READ_ONLY, SECRET {name})",
        ),
    )
