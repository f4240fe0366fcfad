"""OAuth tokens of servers of tools, sealed: what stands here is of no use without the key that opens it."""

from __future__ import annotations

import time

from headrace.storage.database import Database


class McpTokenTable:
    """The tokens in a database, one row for each server."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, server: str, sealed: bytes, sealed_by: str) -> None:
        """Keep tokens in place of those before."""
        self._database.execute(
            "INSERT OR REPLACE INTO mcp_tokens VALUES (?, ?, ?, ?)",
            (server, sealed, sealed_by, int(time.time())),
        )
        self._database.erase_deleted()

    def find(self, server: str) -> tuple[bytes, str] | None:
        """What is kept of a server, and what it was sealed by."""
        if not self._database.exists:
            return None
        rows = self._database.query("SELECT sealed, sealed_by FROM mcp_tokens WHERE server = ?", (server,))
        return (bytes(rows[0][0]), str(rows[0][1])) if rows else None  # type: ignore[arg-type]

    def remove(self, server: str) -> bool:
        """Delete what is kept of a server; whether there was something."""
        if not self._database.exists:
            return False
        found = self._database.execute("DELETE FROM mcp_tokens WHERE server = ?", (server,)) > 0
        self._database.erase_deleted()
        return found
