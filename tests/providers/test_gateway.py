"""Attempts over several targets: failover, retries, the commit point, breakers, hedging, budgets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from fake import FakeModel
from fake_provider import (
    HELLO,
    Exchange,
    Gateway,
    Reply,
    delta,
    events,
    fail,
    running_provider,
    say,
    send,
    usage,
)

from headrace.chat.messages import Message
from headrace.errors import HeadraceError, UsageError
from headrace.gateway import attempts as attempts_module
from headrace.gateway.breaker import FAILURES_IN_A_ROW, PERMANENT_PAUSE_S, Breaker
from headrace.gateway.hedging import ENOUGH, FirstContentTimes, HedgeShare
from headrace.gateway.routes import read_routes
from headrace.gateway.routing_handler import RoutingHandler
from headrace.inference.accounts import Account
from headrace.inference.attempts import Attempt, Hold
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest
from headrace.providers.failure import Failure
from headrace.providers.target import read_providers
from headrace.storage.keys import KeyLimits

ASK: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "BACKOFF_S", 0.01)


def post(server: Any, model: str = "far", **more: Any) -> Any:
    return server.http().post("/v1/chat/completions", json={"model": model, "messages": ASK, **more})


def test_the_next_target_answers(gateway: Callable[..., Gateway]) -> None:
    with running_provider(fail(500)) as bad:
        server, good = gateway(
            providers={"bad": {"dialect": "openai_chat", "base_url": bad.url}},
            remote={"best": {"targets": ["bad/x", "far"]}},
        )
        reply = post(server, "best")
        assert reply.json()["choices"][0]["message"]["content"] == "Hello"
        assert reply.json()["model"] == "best"
        assert reply.headers["x-headrace-target"] == "far" and reply.headers["x-headrace-attempts"] == "2"
        for path in ("/v1/chat/completions", "/v1/messages"):
            body = {"model": "best", "messages": ASK, "stream": True, "max_tokens": 5}
            headers = server.http().post(path, json=body).headers
            assert headers["x-headrace-target"] == "far", "a stream's headers go with its start"
            assert headers["x-headrace-attempts"] == "2"
        assert len(bad.exchanges) == len(good.exchanges) == 3
        assert bad.exchanges[0].body["model"] == "x"


def test_a_model_of_this_machine_takes_over(gateway: Callable[..., Gateway]) -> None:
    name = FakeModel().name
    server, _ = gateway(fail(503), remote={"best": {"targets": ["far", name]}})
    reply = post(server, "best", max_tokens=3)
    assert reply.status_code == 200 and reply.headers["x-headrace-target"] == name, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 3


def test_an_error_within_a_stream_comes_before_the_commit_point(gateway: Callable[..., Gateway]) -> None:
    """Anthropic's overload: status 200, then an error. Nothing of it may be seen."""
    early = say({"error": {"message": "busy", "type": "overloaded_error"}})
    role_first = say(delta(role="assistant", content=""), {"error": {"message": "busy", "code": 503}})
    server, provider = gateway(early, role_first, say(*HELLO, usage()))
    chunks = list(server.openai().chat.completions.create(model="far", messages=ASK, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello"
    assert len(provider.exchanges) == 3


def test_nothing_is_repeated_after_the_commit_point(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(send(events(delta(content="Hel"), done=False)), say(*HELLO, usage()))
    with server.http().stream(
        "POST", "/v1/chat/completions", json={"model": "far", "messages": ASK, "stream": True}
    ) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert len(provider.exchanges) == 1 and "[DONE]" not in lines[-1]
    assert "'far'" in lines[-1] and '"error"' in lines[-1]
    assert sum('"error"' in line for line in lines) == 1


def test_clients_do_not_retry_what_was_retried(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(fail(500))
    with pytest.raises(Exception, match="attempts") as caught:
        server.openai(max_retries=2).chat.completions.create(model="far", messages=ASK)
    assert getattr(caught.value, "status_code", 0) == 502
    assert len(provider.exchanges) == 3  # the official client sent it once


@pytest.mark.parametrize(
    ("status", "body", "expected", "attempts"),
    [
        (400, {"error": {"message": "temperature is bad", "param": "temperature"}}, 400, 1),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, 400, 1),
        (400, {"error": {"message": "no", "code": "content_filter"}}, 400, 1),
        (401, {"error": {"message": "bad key"}}, 502, 1),
        (404, {"error": {"message": "no such model"}}, 502, 1),
        (429, {"error": {"message": "no money", "code": "insufficient_quota"}}, 502, 1),
        (429, {"error": {"message": "slow down"}}, 429, 3),
        (503, {"error": {"message": "busy"}}, 503, 3),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 503, 3),
        (500, "nothing", 502, 3),
    ],
)
def test_statuses(
    gateway: Callable[..., Gateway], status: int, body: Any, expected: int, attempts: int
) -> None:
    server, provider = gateway(fail(status, body))
    reply = post(server)
    assert reply.status_code == expected and "'far'" in reply.json()["error"]["message"], reply.text
    assert len(provider.exchanges) == attempts
    if isinstance(body, dict) and "param" in body["error"]:
        assert reply.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize("wait", ["1e308", "nan", "-7", "9" * 300, "Wed, 21 Oct 2065 07:28:00 GMT", "soon"])
def test_an_absurd_retry_after_is_bounded(gateway: Callable[..., Gateway], wait: str) -> None:
    server, _ = gateway(fail(429, retry_after=wait))
    reply = post(server)
    assert reply.status_code == 429 and 1 <= int(reply.headers["retry-after"]) <= 3600


def test_a_breaker_opens_and_tries_again() -> None:
    now_s = 0.0
    breaker = Breaker(lambda: now_s)
    failure = Failure(phase="headers", kind="server", message="failed")
    for _ in range(FAILURES_IN_A_ROW):
        assert breaker.begin()
        breaker.failed(failure)
    assert breaker.state == "open" and not breaker.begin()
    now_s = 10.0
    assert breaker.state == "half_open" and breaker.begin() and not breaker.begin()
    breaker.failed(failure)
    assert breaker.state == "open" and breaker.wait_s > 7  # longer than the first time
    now_s = 60.0
    assert breaker.begin()
    breaker.dropped()  # a client left: no verdict
    assert breaker.begin()
    breaker.succeeded()
    assert breaker.state == "closed"
    breaker.failed(Failure(phase="headers", kind="auth", message="bad key"))
    assert breaker.wait_s == PERMANENT_PAUSE_S
    breaker = Breaker(lambda: now_s)
    breaker.failed(Failure(phase="headers", kind="invalid", message="wrong"))
    assert breaker.state == "closed"
    breaker.failed(Failure(phase="headers", kind="rate_limit", message="slow", retry_after_s=30.0))
    assert breaker.wait_s == 30.0


def test_an_open_breaker_answers_at_once(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(fail(401))
    assert post(server).status_code == 502
    reply = post(server)
    assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 30
    assert len(provider.exchanges) == 1 and "bad" not in reply.text and "left alone" in reply.text


def test_a_deadline_of_a_request_says_nothing_about_the_target(gateway: Callable[..., Gateway]) -> None:
    server, provider = gateway(*[slow(1.0, say(*HELLO, usage()))] * FAILURES_IN_A_ROW, say(*HELLO, usage()))
    for _ in range(FAILURES_IN_A_ROW):
        assert post(server, deadline_s=0.25).status_code == 504
    assert post(server).status_code == 200
    assert len(provider.exchanges) == FAILURES_IN_A_ROW + 1


def test_a_schema_of_a_request_says_nothing_about_the_target(gateway: Callable[..., Gateway]) -> None:
    """One that no answer matches must not close the target to others."""
    server, _ = gateway(say(*HELLO, usage()), model={"max_attempts": 1})
    wanted = {"type": "json_object"}
    for _ in range(FAILURES_IN_A_ROW):
        reply = post(server, response_format=wanted)
        assert reply.status_code == 502 and "no JSON" in reply.text, reply.text
    assert post(server).status_code == 200


def test_attempts_are_counted(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(fail(500), say(*HELLO, usage()))
    assert post(server).status_code == 200
    text = server.http().get("/metrics").text
    for outcome in ("server", "ok"):
        assert f'headrace_target_attempts_total{{outcome="{outcome}",target="far"}} 1.0' in text


def test_hedges_are_rare_and_late() -> None:
    times, share = FirstContentTimes(), HedgeShare()
    for number in range(ENOUGH):
        assert times.slow_s is None
        times.add(number / 100)
    assert times.slow_s == pytest.approx(0.19)
    taken = 0
    for _ in range(1000):
        share.count()
        taken += share.take()
    assert taken == 50


class Recorder:
    """What was reserved and booked."""

    def __init__(self) -> None:
        self.holds: dict[int, str] = {}
        self.attempts: list[Attempt] = []
        self.refuses: type[HeadraceError] | None = None

    def bounds(self, **names: str) -> bool:
        return False

    async def reserve(self, *, target: str, **more: Any) -> Hold:
        if self.refuses is not None:
            raise self.refuses("the budget is used up")
        hold = Hold(len(self.holds) + len(self.attempts), 5)
        self.holds[hold.id] = target
        return hold

    async def settle(self, hold: Hold, attempt: Attempt) -> int | None:
        assert self.holds.pop(hold.id) == attempt.target
        self.attempts.append(attempt)
        return 1_500_000


class SlowRecorder(Recorder):
    """Takes its time, as a store does."""

    async def settle(self, hold: Hold, attempt: Attempt) -> int | None:
        return await asyncio.shield(self._settle(hold, attempt))

    async def _settle(self, hold: Hold, attempt: Attempt) -> int | None:
        await asyncio.sleep(0.01)
        return await super().settle(hold, attempt)


def routed(urls: dict[str, str], entries: dict[str, Any], recorder: Recorder) -> RoutingHandler:
    """A routing handler without a server, to be used on a running loop."""
    providers = read_providers(
        {name: {"dialect": "openai_chat", "base_url": url} for name, url in urls.items()}
    )
    handler = RoutingHandler(None, lambda provider: None, recorder)  # type: ignore[arg-type]
    handler.update(read_routes(entries, providers), providers)
    return handler


def request(model: str, **more: Any) -> tuple[ChatRequest, CallContext]:
    call = CallContext(request_id="r", account=Account("", KeyLimits()))
    return ChatRequest(id="r", model=model, messages=(Message("user", "hi"),), **more), call


def slow(seconds: float, reply: Reply) -> Reply:
    async def late(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await reply(exchange)

    return late


def test_a_slow_target_is_hedged_and_the_loser_is_booked() -> None:
    recorder = Recorder()

    async def run() -> CallContext:
        handler = routed(
            {"a": tardy.url, "b": prompt.url},
            {"x": {"targets": ["a/m", "b/m"], "hedge": True}},
            recorder,
        )
        for state in handler.states:
            for _ in range(ENOUGH):
                state.times.add(0.02)
        handler._share.requests = 100
        asked, call = request("x")
        batches = [event async for batch in handler.handle(asked, call) for event in batch]
        assert batches
        await handler.close()
        return call

    with running_provider(slow(5.0, say(*HELLO, usage()))) as tardy, running_provider() as prompt:
        start_s = time.monotonic()
        call = asyncio.run(run())
        assert time.monotonic() - start_s < 4.0
    assert (
        call.reply_headers["x-headrace-target"] == "b/m" and call.reply_headers["x-headrace-attempts"] == "2"
    )
    assert call.reply_headers["x-headrace-cost-usd"] == "0.001500000"
    booked = {attempt.target: attempt for attempt in recorder.attempts}
    assert not recorder.holds
    assert (booked["a/m"].outcome, booked["a/m"].billed, booked["a/m"].kind) == (
        "cancelled",
        "maybe",
        "first",
    )
    assert (booked["b/m"].outcome, booked["b/m"].billed, booked["b/m"].kind) == ("ok", "yes", "hedge")
    assert booked["b/m"].tokens and booked["b/m"].tokens.output == 3


def test_a_client_that_leaves_stops_the_attempt_which_is_booked() -> None:
    recorder = Recorder()

    async def endless(exchange: Exchange) -> None:
        await exchange.begin()
        while True:
            await exchange.send(events(delta(content="more "), done=False))
            await asyncio.sleep(0.01)

    async def run() -> None:
        handler = routed({"a": provider.url}, {"x": {"provider": "a"}}, recorder)
        asked, call = request("x")
        batches = handler.handle(asked, call)
        for _ in range(4):
            await anext(batches)
        await batches.aclose()
        assert handler.running == 0
        await handler.close()

    with running_provider(endless) as provider:
        asyncio.run(run())
        deadline_s = time.monotonic() + 10
        while not provider.gone and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert provider.gone
    assert not recorder.holds and [a.outcome for a in recorder.attempts] == ["cancelled"]


def test_a_cancelled_request_settles_what_it_has_reserved() -> None:
    recorder = Recorder()

    async def run() -> None:
        handler = routed({"a": provider.url}, {"x": {"provider": "a"}}, recorder)

        async def all_of() -> None:
            async for _ in handler.handle(*request("x")):
                pass

        task = asyncio.ensure_future(all_of())
        while not provider.exchanges:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not recorder.holds and handler.running == 0
        await handler.close()

    with running_provider(slow(30.0, say(*HELLO))) as provider:
        asyncio.run(run())
    assert [(a.outcome, a.billed) for a in recorder.attempts] == [("cancelled", "maybe")]


async def _answered(handler: RoutingHandler) -> None:
    batches = handler.handle(*request("x"))
    async for _ in batches:
        pass


def test_cancelled_at_any_moment_nothing_stays_reserved_or_probed() -> None:
    """Also while the loser of a race is booked, whose winner nothing reads yet."""
    recorder, random = SlowRecorder(), Random(7)

    async def run() -> None:
        urls = {"a": tardy.url, "b": prompt.url}
        handler = routed(urls, {"x": {"targets": ["a/m", "b/m"], "hedge": True}}, recorder)
        handler._share.requests = 10_000
        for turn in range(60):
            for state in handler.states:
                for _ in range(ENOUGH):
                    state.times.add(0.002)
            handler.states[0].breaker.cause = None
            if turn % 3 == 0:  # an attempt that is a probe
                failure = Failure(phase="headers", kind="auth", message="bad key")
                handler.states[0].breaker.failed(failure)
                handler.states[0].breaker._until_s = 0.0
            task = asyncio.ensure_future(_answered(handler))
            await asyncio.wait((task,), timeout=random.uniform(0.0, 0.05))
            task.cancel()
            await asyncio.wait((task,))
            for _ in range(200):
                if not recorder.holds:
                    break
                await asyncio.sleep(0.01)
            assert not recorder.holds, turn
            assert handler.running == 0 and not any(one.breaker._probing for one in handler.states)
        await handler.close()

    with running_provider(slow(0.01, say(*HELLO, usage()))) as tardy, running_provider() as prompt:
        asyncio.run(run())
    assert {attempt.outcome for attempt in recorder.attempts} >= {"ok", "cancelled"}


def test_a_budget_refuses_before_anything_is_sent() -> None:
    recorder = Recorder()
    recorder.refuses = UsageError

    async def run() -> None:
        handler = routed({"a": provider.url}, {"x": {"provider": "a"}}, recorder)
        with pytest.raises(UsageError, match="budget"):
            async for _ in handler.handle(*request("x")):
                pass
        assert handler.states[0].breaker.state == "closed"
        await handler.close()

    with running_provider() as provider:
        asyncio.run(run())
        assert not provider.exchanges


def test_deadlines_hold(gateway: Callable[..., Gateway]) -> None:
    server, _ = gateway(slow(5.0, say(*HELLO)))
    start_s = time.monotonic()
    reply = post(server, deadline_s=0.3)
    assert reply.status_code == 504 and time.monotonic() - start_s < 4


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"x": {"provider": "nowhere"}}, "no table"),
        ({"x": {"provider": "a", "targets": ["b"]}}, "one of them"),
        ({"x": {"targets": ["y"]}, "y": {"targets": ["x"]}}, "leads back"),
        ({"x": {"targets": ["nowhere/m"]}}, "no model of this machine"),
        ({"x": {"provider": "a", "tragets": ["b"]}}, "did you mean 'targets'"),
        ({"x": {"provider": "a", "aliases": ["y"]}, "y": {"provider": "a"}}, "two models"),
        ({"x": {"model": "m", "targets": ["a/b"]}}, "needs provider"),
        ({"x": {"provider": "a", "max_attempts": 0}}, "max_attempts"),
    ],
)
def test_wrong_tables_are_refused(entries: Any, message: str) -> None:
    providers = read_providers({"a": {"dialect": "openai_chat", "base_url": "http://127.0.0.1:1/v1"}})
    with pytest.raises(UsageError, match=message):
        read_routes(entries, providers, serves=lambda name: False)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"p": {}}, "base_url is missing"),
        ({"p": {"base_url": "http://user:pass@host/v1"}}, "without a key"),
        ({"p": {"base_url": "file:///etc/passwd"}}, "address"),
        ({"p": {"base_url": "http://h/v1", "kind": "openay"}}, "did you mean 'openai'"),
        ({"p": {"base_url": "http://h/v1", "dialect": "soap"}}, "one of"),
        ({"openai": {"dialect": "google"}}, "speaks openai_chat"),
        ({"p": 5}, "no table"),
    ],
)
def test_wrong_providers_are_refused(table: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_providers(table)
