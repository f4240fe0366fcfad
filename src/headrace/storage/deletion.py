"""What the store has of a request besides its line in the log, deleted together."""

from __future__ import annotations

from headrace.storage.sql_store import SqlStore


def delete_everywhere(database: SqlStore, request_id: str, owner: str | None) -> bool:
    """Delete the response and the agent run of that id, those of `owner` alone unless it is None, also from
    the file. Whether there was one."""
    if not database.exists:
        return False
    whose, values = ("", ()) if owner is None else (" AND owner = ?", (owner,))
    with database.transaction():
        counts = [
            database.execute(f"DELETE FROM {table} WHERE id = ?{whose}", (request_id, *values))
            for table in ("responses", "agent_runs")
        ]
    if any(counts):
        database.erase_deleted()
    return any(counts)
