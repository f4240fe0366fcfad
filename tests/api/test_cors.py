"""Pages of other origins: who may call, and what a browser is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from in_process import Running

from headrace.config.sources import load_settings
from headrace.errors import EngineStopped, UsageError

PAGE = "https://app.example"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}

Serve = Callable[..., Running]


def preflight(server: Running, origin: str = PAGE, **headers: str) -> httpx.Response:
    asked = {"origin": origin, "access-control-request-method": "POST"} | headers
    return server.http().options("/v1/chat/completions", headers=asked)


def cors(reply: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


def post(server: Running, origin: str | None = PAGE, **more: Any) -> httpx.Response:
    headers = {} if origin is None else {"origin": origin}
    return server.http(headers=headers).post("/v1/chat/completions", json=BODY | more)


def test_by_default_no_page_elsewhere_may_call(server: Running) -> None:
    assert preflight(server).status_code == 403
    refused = post(server)
    assert refused.status_code == 403 and "--cors-origins" in refused.json()["error"]["message"]
    here = post(server, "http://localhost:3000")
    assert here.status_code == 200
    assert not cors(here) and "vary" not in here.headers


def test_a_preflight_is_answered_without_a_key(serve: Serve) -> None:
    server = serve(cors_origins=f"{PAGE},http://localhost:3000", api_key="secret")
    reply = preflight(server, **{"access-control-request-headers": "authorization,content-type"})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-credentials"] == "true"
    assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
    assert {"GET", "POST", "DELETE"} <= set(reply.headers["access-control-allow-methods"].split(", "))
    assert "Origin" in reply.headers["vary"].split(", ")
    assert preflight(server, "https://evil.example").status_code == 403
    assert server.http(headers={"origin": PAGE}).options("/v1/models").status_code == 401  # not a preflight


def test_replies_errors_and_streams_can_be_read(serve: Serve) -> None:
    server = serve(cors_origins=PAGE)
    for reply, status in (
        (post(server), 200),
        (post(server, stream=True), 200),
        (post(server, temprature=1), 400),
        (post(server, model="other"), 404),
        (server.http(headers={"origin": PAGE}).get("/nothing"), 404),
        (server.http(headers={"origin": PAGE}).post("/api/generate", json={}), 400),
    ):
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        assert reply.headers["vary"] == "Origin"
    server.model.engine.refusal = EngineStopped("stopped")
    assert post(server).headers["access-control-allow-origin"] == PAGE


def test_a_refused_key_can_be_read(serve: Serve) -> None:
    reply = post(serve(cors_origins=PAGE, api_key="secret"))
    assert reply.status_code == 401 and reply.headers["access-control-allow-origin"] == PAGE


def test_caches_learn_that_replies_differ(serve: Serve) -> None:
    server = serve(cors_origins=PAGE)
    for origin in (None, "http://localhost:1"):
        reply = post(server, origin)
        assert reply.status_code == 200
        assert "access-control-allow-origin" not in reply.headers and reply.headers["vary"] == "Origin"
    foreign = post(server, "https://evil.example")
    assert foreign.status_code == 403 and not cors(foreign)


@pytest.mark.parametrize("origin", ["https://any.example", "null", "http://["])
def test_everybody_may_call_and_never_with_credentials(serve: Serve, origin: str) -> None:
    server = serve(cors_origins="*")
    for reply in (preflight(server, origin), post(server, origin)):
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in reply.headers
        assert "Origin" in reply.headers["vary"].split(", ")


@pytest.mark.parametrize(
    "origin",
    [
        *("https://app.example.evil.example", "http://app.example", "https://app.example:8443"),
        *("https://evil.example/https://app.example", "null"),
    ],
)
def test_an_origin_is_compared_whole(serve: Serve, origin: str) -> None:
    server = serve(cors_origins=PAGE)
    assert preflight(server, origin).status_code == 403
    assert post(server, origin).status_code == 403


def test_the_host_is_checked_all_the_same(serve: Serve) -> None:
    reply = preflight(serve(cors_origins="*"), host="evil.example")
    assert reply.status_code == 403


@pytest.mark.parametrize(
    "value", ["app.example", "https://app.example/", "https://", "null", "https://*.a b"]
)
def test_what_is_no_origin_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="origins such as"):
        load_settings({"cors_origins": value}, environ={}, folders=[])


def test_localhost_is_pages_of_this_machine_at_any_port(serve: Serve) -> None:
    server = serve(cors_origins="localhost")
    for origin in ("http://localhost", "http://localhost:3000", "http://127.0.0.1:3000", "http://[::1]:3000"):
        assert preflight(server, origin).headers["access-control-allow-origin"] == origin
    for origin in ("http://localhost.evil.example", "http://notlocalhost", PAGE):
        assert "access-control-allow-origin" not in preflight(server, origin).headers
