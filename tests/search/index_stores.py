"""The stores that an index may be in: tests run the same on all, with the local one as witness."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.config.search_settings import IndexStore, IndexStores
from headrace.search.index import Index, IndexMeta
from headrace.search.indexes import Indexes
from postgres_server import Postgres, running_postgres

STORES = ("local", "pgvector", "qdrant")
PASSWORD = "p4ss w'ord%7E@:/"


class Store:
    """A store of one kind: a folder, or the database of an address, with a password in the file `secret`."""

    def __init__(self, folder: Path, address: str = "", secret: str = "", qdrant: Any = None) -> None:
        self.folder, self.address, self.secret, self.qdrant = folder, address, secret, qdrant
        self.indexes = self.reopened()
        self._opened = [self.indexes]
        if address.startswith("qdrant"):  # a writer that was killed is given up sooner
            importlib.import_module("headrace.search.qdrant.writing").LEASE_S = 0.5  # pyright: ignore

    def reopened(self) -> Indexes:
        """The same indexes by other connections."""
        where = IndexStore(store=self.address or None, secret=f"file:{self.secret}" if self.secret else None)
        return Indexes(self.folder, IndexStores(where))

    def new(self, name: str = "i", **more: Any) -> Index:
        """A new index."""
        return self.indexes.find_or_make(name, IndexMeta(model="m", chunk_tokens=64, **more))

    def other(self, name: str = "i", owner: str = "") -> Index:
        """The index of that name as another program has it."""
        self._opened.append(self.reopened())
        return self._opened[-1].find(name, owner)

    def connections(self) -> int:
        """To its database, of all programs, with something to do."""
        if not self.address:
            return 0
        if self.qdrant is not None:
            return self.qdrant.active
        with connect(self.address, self.secret) as connection:
            [(count,)] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'headrace'"
            ).fetchall()
        return count

    def close(self) -> None:
        """Close its connections, and empty its database."""
        for indexes in self._opened:
            indexes.close()
        if self.qdrant is not None:
            self.qdrant.clear()
        elif self.address:
            with connect(self.address, self.secret) as connection:
                names = connection.execute(
                    "SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname LIKE 'headrace%'"
                ).fetchall()
                for (name,) in names:
                    connection.execute(f"DROP SCHEMA {name} CASCADE")


class Server:
    """A PostgreSQL server with pgvector that asks for a password, and its database `tests`."""

    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres
        self.secret = str(postgres.folder / "password")
        self.make("tests", "UTF8")

    def make(self, database: str, encoding: str) -> str:
        """The address of a new database, without the password."""
        with connect(self._address("postgres"), self.secret) as connection:
            connection.execute(f"CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}'")
        return self._address(database)

    def store(self, folder: Path) -> Store:
        """A store in the database, which is empty."""
        return Store(folder, self._address("tests"), self.secret)

    def settings(self) -> dict[str, str]:
        """The table [search] of all indexes in the database."""
        return {"store": self._address("tests"), "secret": f"file:{self.secret}"}

    def _address(self, database: str) -> str:
        return f"postgresql://{self.postgres.user}@127.0.0.1:{self.postgres.port}/{database}"


class QdrantStores:
    """A stand-in for a Qdrant server that asks for an API key."""

    def __init__(self, server: Any, secret: Path) -> None:
        self.server, self.secret = server, str(secret)

    def store(self, folder: Path) -> Store:
        """A store on the server, which is empty."""
        return Store(folder, self.server.address, self.secret, self.server)

    def settings(self) -> dict[str, str]:
        """The table [search] of all indexes on the server."""
        return {"store": self.server.address, "secret": f"file:{self.secret}"}


@contextmanager
def qdrant_server(folder: Path) -> Iterator[QdrantStores]:
    """A server; skips where Qdrant's client is not installed."""
    pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")
    found = importlib.import_module("qdrant_server")
    secret = folder / "qdrant-key"
    secret.write_text(found.API_KEY)
    with found.running_qdrant() as server:
        yield QdrantStores(server, secret)


@contextmanager
def pgvector_server() -> Iterator[Server]:
    """A server; skips where there is none."""
    pytest.importorskip("psycopg", reason="the extra pgvector is not installed")
    with running_postgres("search", free_port(), PASSWORD, vectors=True) as server:
        yield Server(server)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def connect(address: str, secret: str) -> Any:
    """A connection past the code that is tested."""
    import psycopg

    return psycopg.connect(address, password=Path(secret).read_text(), autocommit=True)
