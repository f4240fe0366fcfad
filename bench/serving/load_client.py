"""The package's load client on loopback, and statistics over many exchanges."""

from __future__ import annotations

from headrace.bench.serve import http_client as client
from headrace.bench.serve.http_client import Address, Exchange, finish, http_request

__all__ = ["Exchange", "begin", "fetch", "finish", "jain", "percentile", "post"]


def post(path: str, body: object, **headers: str) -> bytes:
    """The bytes of a POST request with a JSON body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_request(Address("localhost", 80), "POST", path, named, body)


async def begin(port: int, request: bytes, *, keep_body: bool = True) -> Exchange:
    """Connect and send `request`; the response arrives while the event loop runs."""
    return await client.begin(Address("127.0.0.1", port), request, keep_body=keep_body)


async def fetch(port: int, request: bytes, *, keep_body: bool = True, timeout_s: float = 300.0) -> Exchange:
    """A complete exchange."""
    return await client.fetch(Address("127.0.0.1", port), request, keep_body=keep_body, timeout_s=timeout_s)


def jain(values: list[float]) -> float:
    """Jain's fairness index (Jain, Chiu and Hawe 1984): 1 if all are equal, 1 / n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def percentile(values: list[float], share: float) -> float:
    """The value below which a fraction `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
