"""A target: a model of a provider, with all that an attempt needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.names import nearest
from headrace.config.providers import DialectName, ProviderSettings, TierName, read_provider
from headrace.errors import UsageError
from headrace.providers.table import DEFAULT_ROW, ProviderRow, provider_rows


class Provider(Struct, frozen=True, kw_only=True):
    """A configured provider."""

    name: str
    dialect: DialectName
    base_url: str
    row: ProviderRow
    settings: ProviderSettings

    @property
    def key_variable(self) -> str | None:
        """The environment variable of its key."""
        return self.settings.api_key_env or self.row.key


class RemoteTarget(Struct, frozen=True, kw_only=True):
    """A model of a provider. `name` is the entry's in [models], `model` the provider's own name. `context`
    tokens is what it reads and writes at most, `max_output_tokens` what it writes at most, as its entry says
    so. `tier` is the way of processing that is asked for; with `batches` lines of batches go into batches of
    the provider."""

    name: str
    provider: Provider
    model: str
    context: int | None = None
    max_output_tokens: int | None = None
    tier: TierName = "standard"
    batches: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What tells targets apart."""
        return (self.name, self.provider.name, self.model)

    @property
    def tier_fields(self) -> dict[str, str]:
        """What asks for its tier in a body."""
        return {} if self.tier == "standard" else {"service_tier": self.tier}

    @property
    def row(self) -> ProviderRow:
        """What its provider honors."""
        return self.provider.row


def read_providers(tables: Mapping[str, object] | None) -> dict[str, Provider]:
    """The providers of `[providers]`, by name. UsageError says what is wrong."""
    return {name: _provider(name, entry) for name, entry in (tables or {}).items()}


def _provider(name: str, entry: Any) -> Provider:
    where = f"providers.{name}"
    settings, rows = read_provider(name, entry, "providers"), provider_rows()
    kind = settings.kind or (name if name in rows else None)
    if kind is not None and kind not in rows:
        raise UsageError(f"{where}.kind is {kind!r}, which is not known{nearest(kind, list(rows))}")
    if kind is None:
        kind = {"anthropic": "anthropic", "google": "google", "openai_responses": "openai_responses"}.get(
            settings.dialect or "", DEFAULT_ROW
        )
    row = rows[kind]
    dialect = settings.dialect or row.dialect
    if dialect == "openai_responses" and row.dialect == "openai_chat":  # the same service, another API
        own = {"base_url": row.base_url, "key": row.key, "key_header": row.key_header}
        row = replace(rows[dialect], **own)
    elif dialect != row.dialect:
        raise UsageError(f"{where}: {kind!r} speaks {row.dialect}, not {dialect}: leave dialect or kind out")
    base_url = settings.base_url or row.base_url
    if not base_url:
        raise UsageError(
            f"{where}.base_url is missing: give the address of its API, such as http://host:8000/v1"
        )
    return Provider(name=name, dialect=dialect, base_url=base_url, row=row, settings=settings)
