"""Where the ledger and what fronts share are kept: in the store, or in PostgreSQL where several servers have it."""

from __future__ import annotations

from headrace.config.cluster_settings import shares_store
from headrace.config.extras import extra_module
from headrace.config.settings import Settings
from headrace.storage.database import Database
from headrace.storage.sql_store import SqlStore


def ledger_store(database: Database, url: str | None) -> SqlStore:
    """`database` itself, or PostgreSQL at `url`. Raises ExtraMissing."""
    return database if url is None else _postgres("LEDGER", url)


def shared_store(database: Database, settings: Settings) -> SqlStore:
    """Where keys, files, batches and responses are: in `database`, or where fronts share a ledger in that
    PostgreSQL. Raises ExtraMissing."""
    url = settings.ledger
    return _postgres("STORE", url) if url is not None and shares_store(settings) else database


def _postgres(part: str, url: str) -> SqlStore:
    module = extra_module("postgres", "headrace.storage.postgres", "psycopg")
    return module.PostgresDatabase(url, module.PARTS[part])
