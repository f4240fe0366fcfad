"""Policies of routes: the order that each makes, through the server and as functions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from fake import FakeModel
from fake_provider import HELLO, Gateway, fail, running_provider, say, usage

from headrace.config.providers import RemoteModelSettings
from headrace.errors import UsageError
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget
from headrace.gateway.policies.registry import all_policies
from headrace.gateway.purse import Purse
from headrace.gateway.routes import read_routes
from headrace.gateway.speed import ENOUGH, TargetSpeed
from headrace.providers.target import read_providers

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PRICES = {
    "work/dear": {"input": 10, "output": 30},
    "work/cheap": {"input": 1, "output": 3},
}


def post(server: Any, model: str = "auto", path: str = "/v1/chat/completions", **more: Any) -> Any:
    return server.http().post(path, json={"model": model, "messages": ASK, **more}, timeout=120)


def target(index: int, **more: Any) -> CandidateTarget:
    return CandidateTarget(index=index, name=f"t{index}", is_local=more.pop("is_local", False), **more)


def order(policy: str, *targets: CandidateTarget, facts: Any = None, **settings: Any) -> list[str]:
    given = Facts(prompt_tokens=10, output_tokens=20, **(facts or {}))
    ranked = all_policies()[policy].order(
        given, targets, RemoteModelSettings(targets=tuple(one.name for one in targets), **settings)
    )
    assert all(isinstance(one, RankedTarget) and one.reason for one in ranked)
    return [one.candidate.name for one in ranked]


def test_an_unknown_price_is_no_low_price() -> None:
    assert order("cheapest", target(0), target(1, nano_usd=5), target(2, nano_usd=0)) == ["t2", "t1", "t0"]


def test_a_model_of_this_machine_is_measured_before_it_is_left_out() -> None:
    new, priced = target(0, is_local=True), target(1, nano_usd=5)
    assert order("cheapest", priced, new) == ["t0", "t1"]
    still = target(0, is_local=True, samples=1)  # one answer says too little of its time
    assert order("cheapest", priced, still) == ["t0", "t1"]
    assert order("cheapest", priced, target(0, is_local=True, samples=ENOUGH)) == ["t1", "t0"]
    assert order("cheapest", priced, target(0, is_local=True, samples=1, nano_usd=3)) == ["t0", "t1"]


def test_the_fastest_for_this_size_and_sometimes_the_least_measured() -> None:
    slow, fast, new = target(0, seconds=3.0, samples=9), target(1, seconds=1.0, samples=9), target(2)
    assert order("fastest", slow, fast, new) == ["t1", "t0", "t2"]
    assert order("fastest", slow, fast, new, facts={"draw": 0.01}) == ["t2", "t1", "t0"]


def test_speed_is_that_of_prompts_of_this_size() -> None:
    speed = TargetSpeed()
    assert speed.seconds(10, 10) is None
    for _ in range(9):
        speed.add(10, 11, 0.1, 1.1)
        speed.add(10_000, 11, 2.0, 3.0)
    assert speed.seconds(12, 11) == pytest.approx(1.1)
    assert speed.seconds(9_000, 11) == pytest.approx(3.0)
    speed.add(10, 11, math.nan, 1.0)
    speed.add(10, 11, 2.0, 1.0)
    assert speed.samples == 18


def test_the_least_busy() -> None:
    assert order("least_busy", target(0, in_flight=3), target(1, in_flight=1)) == ["t1", "t0"]


def test_a_label_has_its_target() -> None:
    tasks: dict[str, Any] = {"code": "t1"}
    assert order("task", target(0), target(1), facts={"scores": {"code": 0.9, "x": 0.1}}, tasks=tasks) == [
        "t1",
        "t0",
    ]
    assert order("task", target(0), target(1), tasks=tasks) == ["t0", "t1"]


@pytest.mark.parametrize(
    ("left", "expected"),
    [(None, ["t0", "t1", "t2"]), (0.6, ["t0", "t1", "t2"]), (0.4, ["t2", "t1", "t0"]), (0.05, ["t2"])],
)
def test_what_is_left_of_a_budget_decides(left: float | None, expected: list[str]) -> None:
    targets = [target(0, nano_usd=9), target(1, nano_usd=5), target(2, nano_usd=0, is_local=True)]
    assert order("budget", *(msgspec.structs.replace(one, left=left) for one in targets)) == expected


def test_hard_requests_go_to_the_last_target() -> None:
    assert order("difficulty", target(0), target(1), facts={"scores": {"hard": 0.7, "easy": 0.3}}) == [
        "t1",
        "t0",
    ]
    assert order("difficulty", target(0), target(1), facts={"scores": {"hard": 0.2, "easy": 0.8}}) == [
        "t0",
        "t1",
    ]
    assert order("difficulty", target(0), target(1))[0] == "t1"  # what is not known is hard


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"route": "cheepest"}, "cheapest"),
        ({"route": "policy"}, "no policy"),
        ({"route": "../fixed"}, "no policy"),
        ({"route": "fixed"}, "one target"),
        ({"route": "task"}, "classifier"),
        ({"route": "task", "classifier": "c", "tasks": {"a": "nowhere"}}, "none of its targets"),
        ({"route": "cascade", "targets": ["far"]}, "two targets"),
        ({"route": "cascade", "score": "verifier"}, "verifier"),
        ({"route": "difficulty"}, "classifier"),
        ({"route": "budget", "local_below": 0.9}, "local_below"),
        ({"privacy": "none"}, "privacy"),
        ({"audit": 2}, "audit"),
        ({"audit": math.nan}, "audit"),
        ({"targets": ["far", "auto"]}, "leads back"),
        ({"targets": ["far", "nested"]}, "a target cannot"),
        ({"targets": ["far", "secret"]}, "a target cannot"),
    ],
)
def test_wrong_routes_are_told(entry: dict[str, Any], word: str) -> None:
    entries: dict[str, Any] = {
        "far": {"provider": "work"},
        "near": {"provider": "work"},
        "nested": {"targets": ["far", "near"], "route": "cheapest"},
        "secret": {"targets": ["far", "near"], "privacy": "local"},
        "auto": {"targets": ["far", "near"], **entry},
    }
    providers = read_providers({"work": {"dialect": "openai_chat", "base_url": "http://x/v1"}})
    with pytest.raises(UsageError, match=word):
        read_routes(entries, providers)


def test_the_cheapest_target_answers(gateway: Callable[..., Gateway]) -> None:
    remote = {
        "cheap": {"provider": "work", "model": "cheap"},
        "dear": {"provider": "work", "model": "dear"},
        "auto": {"targets": ["far", "dear", "cheap"], "route": "cheapest"},
    }
    server, provider = gateway(remote=remote, prices=PRICES)
    reply = post(server)
    assert reply.headers["x-headrace-target"] == "cheap", reply.text
    assert provider.exchanges[0].body["model"] == "cheap"
    # 5 tokens in, 3 out
    assert reply.headers["x-headrace-cost-usd"] == f"{(5 * 1 + 3 * 3) / 1e6:.9f}"
    found = post(server, path="/v1/routes/explain").json()
    assert [one["target"] for one in found["targets"]] == ["cheap", "dear", "far"]
    assert found["targets"][2]["usd"] is None and "not known" in found["targets"][2]["reason"]
    assert len(provider.exchanges) == 1  # explaining asks no one


def test_a_limit_of_money_holds_over_all_attempts(gateway: Callable[..., Gateway]) -> None:
    remote = {
        "cheap": {"provider": "work", "model": "cheap"},
        "dear": {"provider": "work", "model": "dear"},
        "auto": {"targets": ["dear", "cheap", "far"], "max_attempts": 5},
    }
    server, provider = gateway(fail(500), remote=remote, prices=PRICES)
    none = post(server, route={"max_usd": 0.000001}, max_tokens=10)
    assert none.status_code == 400 and none.json()["error"]["param"] == "route"
    assert "may cost" in none.json()["error"]["message"] and not provider.exchanges
    cheap = post(server, path="/v1/routes/explain", route={"max_usd": 1}, max_tokens=10).json()
    worst = next(one["most_usd"] for one in cheap["targets"] if one["target"] == "cheap")
    assert worst is not None
    post(server, route={"max_usd": 0.003}, max_tokens=10)
    assert {one.body["model"] for one in provider.exchanges} == {"cheap"}
    assert len(provider.exchanges) == 2  # two attempts at 0.0013 dollars each fit, a third does not


def test_a_purse_is_never_overdrawn() -> None:
    a, b = object(), object()
    purse = Purse(10, {a: 4, b: 0})  # type: ignore[dict-item]
    taken = 0
    while purse.allows(a):  # type: ignore[arg-type]
        purse.take(a)  # type: ignore[arg-type]
        taken += 1
    assert taken == 2 and purse.allows(b)  # type: ignore[arg-type]
    assert not purse.allows(object())  # type: ignore[arg-type]


def test_a_limit_of_time_becomes_the_deadline(gateway: Callable[..., Gateway]) -> None:
    async def silent(exchange: Any) -> None:
        await asyncio.sleep(30)

    server, _ = gateway(silent, remote={"auto": {"targets": ["far"], "max_attempts": 1}})
    begun = time.monotonic()
    reply = post(server, route={"max_s": 0.3})
    assert reply.status_code == 504 and time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "route",
    [
        {"max_usd": -1},
        {"max_usd": "1"},
        {"max_s": 0},
        {"privacy": "off"},
        {"quality": 1},
        {"quality": 2},
        {"speed": 1},
        [],
        "local",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"])
def test_wishes_that_mean_nothing_are_refused(gateway: Callable[..., Gateway], path: str, route: Any) -> None:
    server, provider = gateway()
    body = {"model": "far", "max_tokens": 5, "route": route}
    body |= {"input": "hi"} if path == "/v1/responses" else {"messages": ASK}
    if path in ("/api/chat", "/v1/responses"):
        del body["max_tokens"]
    reply = server.http().post(path, json=body)
    assert reply.status_code == 400 and "route" in reply.text, reply.text
    assert not provider.exchanges


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"])
def test_every_surface_keeps_requests_on_this_machine(gateway: Callable[..., Gateway], path: str) -> None:
    local = FakeModel().name
    server, provider = gateway(remote={"auto": {"targets": ["far", local]}})
    body: dict[str, Any] = {"model": "auto", "route": {"privacy": "local"}}
    body |= {"input": "hi"} if path == "/v1/responses" else {"messages": ASK}
    body |= {"max_tokens": 5} if path == "/v1/messages" else {}
    body |= {"stream": False}
    reply = server.http().post(path, json=body)
    assert reply.status_code == 200 and reply.headers["x-headrace-target"] == local, reply.text
    assert not provider.exchanges


def test_a_limit_of_money_does_not_exceed_the_context_of_a_model_here(
    gateway: Callable[..., Gateway],
) -> None:
    local = FakeModel().name
    server, _ = gateway(remote={"auto": {"targets": [local, "far"], "route": "cheapest"}})
    body = {"model": "auto", "messages": ASK, "route": {"max_usd": 0.01}}
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.status_code == 200 and reply.headers["x-headrace-target"] == local, reply.text


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_thousands_of_targets(gateway: Callable[..., Gateway], count: int) -> None:
    names = [f"work/m{index}" for index in range(count)]
    prices = {names[-1]: {"input": 1, "output": 3}}
    server, provider = gateway(
        remote={"auto": {"targets": names, "route": "cheapest"}}, prices=prices, model={}
    )
    reply = post(server)
    assert reply.headers["x-headrace-target"] == names[-1], reply.text
    assert len(provider.exchanges) == 1


def test_routes_are_listed(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(remote={"auto": {"targets": ["far", "work/x"], "route": "least_busy"}})
    found = {one["id"]: one for one in server.http().get("/v1/routes").json()["data"]}
    assert found["auto"]["policy"] == "least_busy" and found["auto"]["gate"] is None
    assert [one["target"] for one in found["auto"]["targets"]] == ["far", "work/x"]
    unknown = post(server, "nothing", path="/v1/routes/explain")
    assert unknown.status_code == 400 and "no route" in unknown.text


def test_in_flight_goes_back_to_none(gateway: Callable[..., Gateway]) -> None:
    with ExitStack() as stack:
        bad = stack.enter_context(running_provider(fail(500)))
        server, _ = gateway(
            say(*HELLO, usage()),
            providers={"bad": {"dialect": "openai_chat", "base_url": bad.url}},
            remote={"auto": {"targets": ["bad/x", "far"], "route": "least_busy"}},
        )
        for _ in range(4):
            post(server)
        [auto] = [one for one in server.http().get("/v1/routes").json()["data"] if one["id"] == "auto"]
        assert [one["in_flight"] for one in auto["targets"]] == [0, 0]
        assert auto["targets"][1]["measured"] == 4
