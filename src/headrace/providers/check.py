"""What is configured of providers, and whether they answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import asdict

from headrace.errors import UsageError
from headrace.providers.dialects.registry import dialect_of
from headrace.providers.failure import AttemptFailed, shown
from headrace.providers.key_store import KeyStore
from headrace.providers.remote_attempt import key_headers
from headrace.providers.target import Provider, read_providers
from headrace.providers.upstream import Upstream

TIMEOUT_S = 20.0


class ProviderCheck(Struct, frozen=True):
    """A configured provider, or a kept key of one that is not; `key_from` says where its key is."""

    name: str
    dialect: str
    base_url: str
    key_from: str
    added_s: int | None

    def fields(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def described(keys: KeyStore, tables: Mapping[str, object] | None) -> list[ProviderCheck]:
    """Every provider, without any key."""
    providers, sealed = read_providers(tables), {one.provider: one for one in keys.all()}
    found = [
        ProviderCheck(
            *(name, one.dialect, one.base_url, _key_from(one, sealed=name in sealed)),
            sealed[name].created_s if name in sealed else None,
        )
        for name, one in providers.items()
    ]
    unused = [one for name, one in sealed.items() if name not in providers]
    return [
        *found,
        *(ProviderCheck(one.provider, "", "not configured", "store", one.created_s) for one in unused),
    ]


def _key_from(provider: Provider, *, sealed: bool) -> str:
    variable = provider.key_variable
    if variable and os.environ.get(variable):
        return variable
    return "store" if sealed else "none"


def checked(
    keys: KeyStore, tables: Mapping[str, object] | None, name: str | None
) -> list[tuple[str, str | None]]:
    """Ask providers for their models; of each its name, and what is wrong, None where nothing is."""
    providers = read_providers(tables)
    if name is not None and name not in providers:
        raise UsageError(f"there is no table [providers.{name}] in headrace.toml")
    asked = list(providers.values()) if name is None else [providers[name]]

    async def ask_all() -> list[str | None]:
        return await asyncio.gather(*(_problem(one, keys) for one in asked))

    return [(one.name, found) for one, found in zip(asked, asyncio.run(ask_all()), strict=True)]


async def _problem(provider: Provider, keys: KeyStore) -> str | None:
    try:
        key = keys.key_of(provider)
    except UsageError as error:
        return error.message
    upstream, dialect = Upstream(provider.base_url, provider.settings), dialect_of(provider.dialect)
    try:
        headers = {**dialect.headers, **key_headers(provider.row, key)}
        deadline_s = asyncio.get_running_loop().time() + TIMEOUT_S
        reply = await upstream.send("/models", None, headers, deadline_s)
        body = await reply.body()
        if reply.status == 200:
            return None
        return shown(dialect.failure(reply.status, body).message, key)
    except AttemptFailed as error:
        return shown(error.failure.message, key)
    finally:
        await upstream.close()
