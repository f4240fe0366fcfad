"""Models of providers that requests name as PROVIDER/MODEL, without an entry in [models]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_provider import Gateway

from headrace.gateway.direct_names import MAX_KEPT, DirectNames
from headrace.providers.target import read_providers

Start = Callable[..., Gateway]
DIRECT: Any = {"direct": True}
ASK: list[Any] = [{"role": "user", "content": "hi"}]


def post(server: Any, model: str) -> Any:
    return server.http().post("/v1/chat/completions", json={"model": model, "messages": ASK})


@pytest.mark.parametrize("model", ["big-1", "org/big-1", "big:free", "a@b", "big.1"])
def test_a_model_of_a_provider(gateway: Start, model: str) -> None:
    server, provider = gateway(provider=DIRECT)
    reply = post(server, f"work/{model}")
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == f"work/{model}"
    assert reply.headers["x-headrace-target"] == f"work/{model}"
    assert provider.exchanges[0].body["model"] == model


def test_on_every_surface(gateway: Start) -> None:
    server, provider = gateway(provider=DIRECT)
    http = server.http()
    message = {"model": "work/m", "messages": ASK, "max_tokens": 9}
    assert http.post("/v1/messages", json=message).status_code == 200
    assert http.post("/v1/responses", json={"model": "work/m", "input": "hi"}).status_code == 200
    assert http.post("/api/chat", json={"model": "work/m", "messages": ASK}).status_code == 200
    assert [one.body["model"] for one in provider.exchanges] == ["m"] * 3


@pytest.mark.parametrize(
    "model",
    [
        "../../x",
        "a/../b",
        "a//b",
        "/a",
        "a/",
        ".",
        "a?b=c",
        "a#b",
        "a%2fb",
        "a\\b",
        "a b",
        "a\nb",
        "a" * 200,
        "",
    ],
)
def test_what_can_be_no_name_is_refused(gateway: Start, model: str) -> None:
    server, provider = gateway(provider=DIRECT)
    reply = post(server, f"work/{model}")
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "model", reply.text
    assert not provider.exchanges


def test_an_unknown_provider_is_named_with_those_that_are_there(gateway: Start) -> None:
    server, provider = gateway(provider=DIRECT)
    reply = post(server, "other/m")
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"
    assert "which are: work" in reply.json()["error"]["message"]
    assert not provider.exchanges


@pytest.mark.parametrize("table", [{}, {"direct": False}])
def test_a_provider_that_does_not_say_so_has_no_such_names(gateway: Start, table: Any) -> None:
    server, provider = gateway(provider=table)
    assert post(server, "work/m").status_code == 404
    assert post(server, "far").status_code == 200
    assert len(provider.exchanges) == 1


def test_models_of_this_machine_go_first(gateway: Start) -> None:
    server, provider = gateway(
        providers={"fake": {"dialect": "openai_chat", "base_url": "http://127.0.0.1:1/v1", **DIRECT}}
    )
    assert post(server, "fake/model").status_code == 200  # the local model of that name
    assert not provider.exchanges


def test_they_are_not_listed(gateway: Start) -> None:
    server, _ = gateway(provider=DIRECT)
    post(server, "work/m")
    listed = {one["id"] for one in server.http().get("/v1/models").json()["data"]}
    assert "far" in listed and "work/m" not in listed


def test_many_names_take_no_more_memory() -> None:
    table = {"dialect": "openai_chat", "base_url": "http://127.0.0.1:1/v1", **DIRECT}
    providers = read_providers({"work": table})
    names = DirectNames(providers, lambda name: False)
    first = names.find("work/m0")
    for number in range(MAX_KEPT):
        assert names.find(f"work/m{number}") is names.find(f"work/m{number}")
    assert names.find("work/more") is not None
    assert names.find("work/m0") is not first
    assert names.find("other/m") is None and names.find("m") is None
