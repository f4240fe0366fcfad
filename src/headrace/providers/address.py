"""Which addresses a provider may lead to: what is checked is what is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL = ipaddress.ip_network("2000::/3")
"""All global unicast addresses of IPv6 (RFC 4291)."""
PINNED_S = 300.0
"""How long an answer of the name server holds."""


class PrivateAddress(OSError):
    """A public name leads to an address of a private network."""


def is_private(address: str) -> bool:
    """Whether an address is not public; an IPv4 address in an IPv6 one counts as it is."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip.sixtofour is not None:
            ip = ip.sixtofour
        elif ip not in _GLOBAL:
            return True
    return not ip.is_global or ip.is_multicast


def is_local_name(host: str) -> bool:
    """Whether a host is private by its own name: who configures it means a private network."""
    host = host.lower().rstrip(".")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_LOCAL_SUFFIXES)
    return True


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
