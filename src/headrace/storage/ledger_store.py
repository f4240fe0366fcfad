"""Where the ledger and what fronts share are kept: in the store, or in a PostgreSQL of several servers."""

from __future__ import annotations

from headrace.config.cluster_settings import shares_store
from headrace.config.extras import extra_module
from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.storage.database import Database
from headrace.storage.keys import Keys
from headrace.storage.sql_store import SqlStore


def ledger_store(database: Database, url: str | None) -> SqlStore:
    """`database` itself, or PostgreSQL at `url`. Raises ExtraMissing."""
    return database if url is None else _postgres("LEDGER", url)


def shared_store(database: Database, settings: Settings) -> SqlStore:
    """Where keys, files, batches and responses are: in `database`, or where fronts share a ledger in that
    PostgreSQL. Raises ExtraMissing."""
    url = settings.ledger
    return _postgres("STORE", url) if url is not None and shares_store(settings) else database


def check_keys(settings: Settings) -> None:
    """UsageError where a server that would share keys has some of its own, which the others do not know."""
    database = Database(settings.store_file)
    store = shared_store(database, settings)
    try:
        if store is not database and Keys(database).ever() and not Keys(store).ever():
            raise UsageError(
                f"the store {settings.store_file} has keys, and the PostgreSQL that all servers share has "
                "none: make them there with `headrace keys add NAME --fronts N --ledger URL`, or "
                "name another --store",
                param="fronts",
            )
    finally:
        store.close()
        database.close()


def _postgres(part: str, url: str) -> SqlStore:
    module = extra_module("postgres", "headrace.storage.postgres", "psycopg")
    return module.PostgresDatabase(url, module.PARTS[part])
