"""Settings of search: where indexes are kept, `[search]` and `[search.indexes.NAME]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import text
from headrace.errors import UsageError

SCHEMES: Mapping[str, Literal["pgvector", "qdrant"]] = {
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "qdrant": "qdrant",
    "qdrants": "qdrant",
    "http": "qdrant",
    "https": "qdrant",
}
"""How addresses of stores begin, and the extra that each needs."""
_FORMS = "postgresql://USER@HOST:PORT/DATABASE or qdrant://HOST:PORT"
INDEX_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


class IndexStore(Struct, frozen=True, kw_only=True):
    """Where an index is kept."""

    store: Annotated[
        str | None,
        Setting(
            help="PostgreSQL database with the extension pgvector, as postgresql://USER@HOST:PORT/DATABASE,"
            " or Qdrant server, as qdrant://HOST:PORT (with TLS qdrants:// or https://), without a password",
            values=text("url"),
            shown_default="a folder beside the store",
        ),
    ] = None
    secret: Annotated[
        str | None,
        Setting(
            help="name of its password or API key: env:VARIABLE or file:PATH",
            values=text("env:VARIABLE"),
            shown_default="none",
        ),
    ] = None

    @property
    def kind(self) -> Literal["local", "pgvector", "qdrant"]:
        """What kind of store it is."""
        return "local" if self.store is None else SCHEMES[urlsplit(self.store).scheme]


INDEX_STORE_SETTINGS: Mapping[str, Setting] = table_of(IndexStore)


class IndexStores(Struct, frozen=True):
    """Where all indexes are kept, and those that have a store of their own."""

    everything: IndexStore = IndexStore()
    own: Mapping[str, IndexStore] = {}


def read_search(table: Mapping[str, object] | None) -> IndexStores:
    """The table [search]; UsageError names what is unknown or no value, and never repeats an address."""
    given = dict(table or {})
    indexes = given.pop("indexes", {})
    if not isinstance(indexes, Mapping):
        raise UsageError("search.indexes is a table with a table for each index: [search.indexes.NAME]")
    names = cast("Mapping[str, object]", indexes)
    for name in names:
        if not INDEX_NAME.fullmatch(name):
            raise UsageError(
                f"search.indexes: {name[:80]!r} is no name of an index: it has up to 63 letters, digits, -"
                " and _, and begins with a letter or _"
            )
    own = {name: _store(entry, f"search.indexes.{name}") for name, entry in names.items()}
    return IndexStores(_store(given, "search", ("indexes",)), own)


def _store(entry: object, where: str, also: tuple[str, ...] = ()) -> IndexStore:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is no table")
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, object]", entry).items():
        name = known_name(key, [*INDEX_STORE_SETTINGS, *also], f"{where}: unknown {key!r}")
        values[name] = INDEX_STORE_SETTINGS[name].parse(value, f"{where}.{key}")
    found = IndexStore(**values)
    if found.store is not None:
        _check_address(found.store, f"{where}.store")
    elif found.secret is not None:
        raise UsageError(f"{where}.secret is the password of a store: name it by {where}.store")
    return found


def _check_address(address: str, where: str) -> None:
    try:
        parts = urlsplit(address)
        password, given = parts.password, [name for name, _ in parse_qsl(parts.query)]
        found = SCHEMES.get(parts.scheme)
        is_whole = found != "qdrant" or bool(parts.hostname and (parts.port is None or parts.port))
    except ValueError:
        is_whole, found, password, parts, given = False, "pgvector", None, None, list[str]()
    if parts is None or not is_whole:
        raise UsageError(f"{where} is no address: write {_FORMS}")
    if found is None:
        raise UsageError(
            f"{where} begins with {parts.scheme[:40] or 'nothing'!r}: stores of indexes are PostgreSQL"
            f" databases with pgvector and Qdrant servers, {_FORMS}"
        )
    if password is not None or "password" in given or (found == "qdrant" and parts.username is not None):
        raise UsageError(
            f"{where} has a password in it: leave it out, and name it by secret, such as"
            ' secret = "env:SEARCH_PASSWORD"'
        )
    if found == "qdrant" and (parts.query or parts.fragment):
        raise UsageError(
            f"{where} has more than an address in it: leave out what follows the ? or #; an API key is"
            ' named by secret, such as secret = "env:QDRANT_API_KEY"'
        )
