"""OAuth tokens of servers of tools, kept in the store as keys of providers are."""

from __future__ import annotations

from headrace.config.settings import Settings
from headrace.errors import UsageError
from headrace.providers.sealing import SHOWN, Sealing
from headrace.storage.database import Database
from headrace.storage.mcp_tokens import McpTokenTable


class TokenVault:
    """Seals what is kept of a server, bound to its name. Thread-safe as far as the database is."""

    def __init__(self, database: Database) -> None:
        self._table, self._sealing = McpTokenTable(database), Sealing()

    def load(self, server: str) -> bytes | None:
        """What is kept of a server; UsageError where it cannot be opened."""
        found = self._table.find(server)
        if found is None:
            return None
        opened = self._sealing.open(*found, _name(server))
        if opened is None:
            raise UsageError(
                f"the tokens of {server!r} were sealed with another key ({SHOWN.get(found[1], found[1])}): "
                f"restore that, or run `headrace mcp login {server}` again"
            )
        return opened

    def save(self, server: str, record: bytes) -> None:
        """Keep a record in place of the one before."""
        self._table.put(server, *self._sealing.seal(record, _name(server)))

    def remove(self, server: str) -> bool:
        """Forget a server; whether something was kept."""
        return self._table.remove(server)


def vault_of(settings: Settings) -> TokenVault:
    """The tokens in the store of these settings."""
    return TokenVault(Database(settings.store_file))


def _name(server: str) -> str:
    """No key of a provider is sealed under it: their names have no blank."""
    return f"mcp {server}"
