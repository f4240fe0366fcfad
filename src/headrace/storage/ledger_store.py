"""Where the ledger is kept: in the store, or in PostgreSQL where several servers share it."""

from __future__ import annotations

from headrace.config.extras import extra_module
from headrace.storage.database import Database
from headrace.storage.sql_store import SqlStore


def ledger_store(database: Database, url: str | None) -> SqlStore:
    """`database` itself, or PostgreSQL at `url`. Raises ExtraMissing."""
    if url is None:
        return database
    return extra_module("postgres", "headrace.storage.postgres", "psycopg").PostgresDatabase(url)
