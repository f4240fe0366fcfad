"""Which addresses a provider may lead to: what is checked is what is connected to."""

from __future__ import annotations

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from headrace.config.addresses import is_private

PINNED_S = 300.0
"""How long an answer of the name server holds."""


class PrivateAddress(OSError):
    """A public name leads to an address of a private network."""


class PinnedResolver(AbstractResolver):
    """Resolves names for the connections of one provider, and keeps the answer for a while.

    Unless `allow_private`, a name whose answer has a private address is refused (PrivateAddress), so that
    who controls a public name cannot point it at this network.
    """

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._pinned: dict[tuple[str, int], tuple[float, list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a host."""
        loop = asyncio.get_running_loop()
        until_s, found = self._pinned.get((host, port), (0.0, []))
        if loop.time() < until_s:
            return found
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        found = [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in infos
        ]
        if not self._allow_private and any(is_private(one["host"]) for one in found):
            raise PrivateAddress(f"{host} leads to a private address: set allow_private if that is meant")
        self._pinned[host, port] = (loop.time() + PINNED_S, found)
        return found

    async def close(self) -> None:
        """Nothing is held."""
