"""Which addresses are of private networks, and which names mean such."""

from __future__ import annotations

import ipaddress

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home.arpa")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL = ipaddress.ip_network("2000::/3")
"""All global unicast addresses of IPv6 (RFC 4291)."""


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
