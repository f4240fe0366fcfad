"""The server under load: address, API key, models, and token counts."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from headrace.bench.serve.http_client import Address, Exchange, fetch, http_request
from headrace.errors import HeadraceError, UsageError

ANSWER_S = 60.0  # timeout of requests outside the load
API_ROOT = "/v1"
MODELS = "/models"
KEY_STATUS = (401, 403)
KEY_REMEDY = "give its key with --api-key or OPENAI_API_KEY"

Endpoint = Literal["chat", "completions"]
PATHS: Mapping[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}


class ServerError(HeadraceError):
    """The server under load cannot be reached, or lacks something that the benchmark needs."""


class Target(Struct, frozen=True):
    """An OpenAI-compatible server: `root` is the path to which `/chat/completions` is appended."""

    address: Address
    root: str
    endpoint: Endpoint
    api_key: str | None = None

    @property
    def url(self) -> str:
        """URL of the requests, without the key."""
        scheme = "https" if self.address.tls else "http"
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"{scheme}://{host}:{self.address.port}{self.root}"

    def request(self, path: str, body: object = None) -> bytes:
        """The bytes of a request: POST if there is a body."""
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        method = "GET" if body is None else "POST"
        return http_request(self.address, method, path, headers, body)


def parse_target(url: str, endpoint: Endpoint, api_key: str | None = None) -> Target:
    """The target of a URL such as `http://127.0.0.1:8080`: a given path is kept, the default is `/v1`.

    Raises UsageError for an invalid URL, and for a key that is not a valid header value.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as error:
        raise UsageError(f"{url!r} is not a URL ({error}); write for example http://127.0.0.1:8080") from None
    if port is None or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise UsageError(
            f"{url!r} is not of the form http://HOST:PORT[/PATH] or https://…; "
            "write for example http://127.0.0.1:8080"
        )
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError("the API key has characters that an HTTP header cannot contain", param="api_key")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    root = parts.path.rstrip("/") or API_ROOT
    return Target(Address(parts.hostname, port, tls), root, endpoint, api_key)


async def chosen_model(target: Target, wanted: str | None) -> str:
    """`wanted`, or the first model of the server's list. Raises ServerError; UsageError without a list."""
    if wanted is not None:
        return wanted
    exchange = await call(target, target.root + MODELS)
    if exchange.status in KEY_STATUS:
        raise ServerError(f"{target.url} answers {exchange.status}: {KEY_REMEDY}")
    names = _names(exchange)
    if not names:
        raise UsageError(
            f"GET {target.url}{MODELS} lists no model (status {exchange.status}): name one with --model, "
            "and mind the path of the URL",
            param="model",
        )
    return names[0]


async def served_models(target: Target) -> list[str]:
    """The names from GET /models; empty if the server has no such endpoint. Raises ServerError."""
    return _names(await call(target, target.root + MODELS))


def _names(exchange: Exchange) -> list[str]:
    try:
        return [str(model["id"]) for model in json.loads(exchange.body)["data"]]
    except (ValueError, KeyError, TypeError):
        return []


async def call(target: Target, path: str, body: object = None, *, timeout_s: float = ANSWER_S) -> Exchange:
    """One exchange outside the load; ServerError if there is no complete response."""
    request = target.request(path, body)
    try:
        exchange = await asyncio.wait_for(fetch(target.address, request, timeout_s=timeout_s), timeout_s)
    except (OSError, TimeoutError) as error:
        why = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else error
        raise ServerError(
            f"no server answers at {target.url} ({why}): start one, for example with `headrace serve`, "
            "or correct the URL"
        ) from None
    if exchange.lost:
        raise ServerError(
            f"the server at {target.url} closed the connection or does not speak HTTP/1.1: "
            "check host, port and scheme"
        )
    return exchange


async def count_tokens(target: Target, model: str, text: str, *, chat: bool = False) -> int | None:
    """Number of tokens of a text, or of a conversation with that one message, by the server's /tokenize.

    None if there is no such endpoint. vLLM, SGLang and headrace take `prompt` or `messages`, llama.cpp
    takes `content`; the endpoint is next to `/v1`, not below it.
    """
    path = target.root.removesuffix(API_ROOT) + "/tokenize"
    content = [{"role": "user", "content": text}]
    asked = {"messages": content} if chat else {"prompt": text}
    exchange = await call(target, path, {"model": model, **asked})
    found = _token_count(exchange)
    if not found and not chat:
        found = _token_count(await call(target, path, {"content": text, "add_special": True}))
    return found


def _token_count(exchange: Exchange) -> int | None:
    """None also for no tokens: the server then ignored an unknown field."""
    if exchange.status != 200:
        return None
    try:
        reply: Any = json.loads(exchange.body)
        return (int(reply["count"]) if "count" in reply else len(reply["tokens"])) or None
    except (ValueError, KeyError, TypeError):
        return None
