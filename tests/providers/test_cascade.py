"""Cascades through the server: the gate, the commit point, audits, and certificates that do not hold."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake import FakeModel
from fake_provider import Exchange, Gateway, delta, events, fail, usage
from in_process import running_server

from headrace.config.providers import RemoteModelSettings
from headrace.errors import InvalidRequest
from headrace.gateway import cascade as cascade_module
from headrace.gateway.gate import Calibration, GateStore, Pair, agrees, calibrate, read_calibration
from headrace.storage.database import Database

SETTINGS = RemoteModelSettings(targets=("small", "big"), route="cascade")


def pairs(count: int = 400, error_at: float = -1.0) -> list[Pair]:
    """Scores from -2 to 0; those below `error_at` are wrong half of the time."""
    scores = [-2 * place / count for place in range(count)]
    return [Pair(score=one, is_wrong=one < error_at and place % 2 == 0) for place, one in enumerate(scores)]


def certified(url: str, **more: Any) -> Calibration:
    names: dict[str, Any] = {"small": f"work {url} small-1", "large": f"work {url} big-1"} | more
    return calibrate(pairs(), route="auto", settings=SETTINGS, task="t", risk=0.05, **names)


def speaks(big: str = "certain") -> Callable[[Exchange], Any]:
    """The small model is sure of "certain" and not of "guess"; the large one says what is given."""

    async def reply(exchange: Exchange) -> None:
        await exchange.begin()
        word = exchange.body["messages"][-1]["content"]
        if exchange.body["model"] == "big-1":
            chunks = [delta(content=big)]
        else:
            chunk = delta(content=word)
            logprob = -0.1 if word == "certain" else -1.9
            token = {"token": word, "logprob": logprob, "bytes": list(word.encode()), "top_logprobs": []}
            chunk["choices"][0]["logprobs"] = {"content": [token]}
            chunks = [chunk | {"warnings": [{"param": "x", "message": "of the small one"}]}]
        await exchange.send(events(*chunks, delta(finish="stop"), usage()))

    return reply


@pytest.fixture
def started(gateway: Callable[..., Gateway], tmp_path: Path) -> Callable[..., Any]:
    def start(audit: float = 0.0, big: str = "certain", **more: Any) -> Any:
        store = tmp_path / "store.sqlite3"
        remote = {
            "small": {"provider": "work", "model": "small-1"},
            "big": {"provider": "work", "model": "big-1"},
            "auto": {"targets": ["small", "big"], "route": "cascade", "audit": audit},
        }
        server, provider = gateway(speaks(big), remote=remote, store=str(store), **more)
        return server, provider, GateStore(Database(store))

    return start


def ask(server: Any, text: str, **more: Any) -> Any:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], **more}
    return server.http().post("/v1/chat/completions", json=body)


def models(provider: Any) -> list[str]:
    return [one.body["model"] for one in provider.exchanges]


def test_without_a_certificate_the_large_model_answers(started: Callable[..., Any]) -> None:
    server, provider, _ = started()
    reply = ask(server, "certain")
    assert reply.headers["x-headrace-target"] == "big" and models(provider) == ["big-1"]
    assert "no certificate" in reply.text


def test_the_gate_decides_and_nothing_is_sent_before(started: Callable[..., Any]) -> None:
    server, provider, gates = started()
    gates.save(certified(provider.url))
    reply = ask(server, "certain")
    assert reply.headers["x-headrace-target"] == "small" and models(provider) == ["small-1"], reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "certain"
    assert reply.json()["choices"][0]["logprobs"] is None and "of the small one" in reply.text
    body: Any = {"model": "auto", "messages": [{"role": "user", "content": "guess"}], "stream": True}
    text = server.http().post("/v1/chat/completions", json=body).text
    assert "of the small one" not in text, "whose answer is not taken"
    assert "guess" not in text and "certain" in text and text.count("[DONE]") == 1
    assert models(provider) == ["small-1", "small-1", "big-1"]
    assert text.count('"role"') == 1


def test_more_quality_than_is_certified_is_the_large_models(started: Callable[..., Any]) -> None:
    server, provider, gates = started()
    gates.save(certified(provider.url))
    assert ask(server, "certain", route={"quality": 0.95}).headers["x-headrace-target"] == "small"
    assert ask(server, "certain", route={"quality": 0.99}).headers["x-headrace-target"] == "big"
    assert ask(server, "certain", n=2).headers["x-headrace-target"] == "big"


def test_other_models_make_a_certificate_void(started: Callable[..., Any]) -> None:
    server, provider, gates = started()
    gates.save(certified(provider.url, small=f"work {provider.url} small-2"))
    reply = ask(server, "certain")
    assert reply.headers["x-headrace-target"] == "big" and "other models" in reply.text
    assert agrees("local m b1-x", "local m") and not agrees("local m b1-x", "local m b1-y")


def test_drift_closes_the_gate_over_restarts(
    started: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cascade_module, "KEPT_S", 0.0)
    server, provider, gates = started(audit=1.0, big="something else")
    gates.save(certified(provider.url))
    asked = 0
    while not gates.read("auto").closed and asked < 60:
        asked += 1
        ask(server, "certain")
        until = time.monotonic() + 5
        while gates.read("auto").audited < asked and time.monotonic() < until:
            time.sleep(0.005)
    gate = gates.read("auto")
    assert gate.closed and gate.audited == gate.wrong <= 10, asked
    reply = ask(server, "certain")
    assert reply.headers["x-headrace-target"] == "big" and "audits found" in reply.text
    entries = sqlite3.connect(tmp_path / "store.sqlite3").execute(
        "SELECT count(*) FROM ledger_entries WHERE attempt_kind = 'audit'"
    )
    assert entries.fetchone()[0] == asked
    assert GateStore(Database(tmp_path / "store.sqlite3")).read("auto").closed


def test_traffic_as_certified_keeps_the_gate_open(tmp_path: Path) -> None:
    """3 % wrong where 5 % are allowed, over 5,000 audits."""
    store, made = GateStore(Database(tmp_path / "s.sqlite3")), certified("http://x")
    store.save(made)
    assert not any(store.audit("auto", made.digest, number % 33 == 0) for number in range(5000))
    assert store.read("auto").audited == 5000
    assert not store.audit("auto", "another", is_wrong=True) and store.read("auto").audited == 5000


def test_certificates_that_were_edited_are_void(tmp_path: Path) -> None:
    made = certified("http://x")
    written = msgspec.to_builtins(made)
    lower = {**written["certificate"], "threshold": -2.0}
    for change in (
        {"certificate": lower},
        {"small": "another"},
        {"route": "another"},
        {"pairs": written["pairs"][1:]},
        {"thresholds": [-2.0, -1.0]},
        {"pairs": []},
        {"digest": ""},
    ):
        with pytest.raises(InvalidRequest, match="certificate"):
            read_calibration(msgspec.json.encode({**written, **change}))
    for data in (b"", b"{}", b"null", b"[" * 10_000, msgspec.json.encode(written)[:-2]):
        with pytest.raises(InvalidRequest, match="certificate"):
            read_calibration(data)
    assert read_calibration(msgspec.json.encode(made)) == made
    database = Database(tmp_path / "s.sqlite3")
    store = GateStore(database)
    store.save(made)
    edited = msgspec.json.encode({**written, "task": "x"})
    database.execute("UPDATE route_gates SET calibration = ?", (edited,))
    assert "evidence" in store.read("auto").closed


def test_what_certifies_nothing_is_told() -> None:
    more: Any = {"route": "r", "settings": SETTINGS, "task": "", "small": "a", "large": "b", "risk": 0.05}
    with pytest.raises(InvalidRequest, match="finite"):
        calibrate([Pair(score=float("nan"), is_wrong=False)] * 100, **more)
    with pytest.raises(InvalidRequest, match="too few"):
        calibrate(pairs(20), **more)
    with pytest.raises(InvalidRequest, match="nothing is certified"):
        calibrate([Pair(score=-place, is_wrong=place % 3 == 0) for place in range(300)], **more)


def test_a_small_model_that_fails_is_no_failure(started: Callable[..., Any]) -> None:
    server, provider, gates = started()
    gates.save(certified(provider.url))
    whole = provider.replies[0]

    async def broken(exchange: Exchange) -> None:
        await (fail(500) if exchange.body["model"] == "small-1" else whole)(exchange)

    provider.replies[0] = broken
    reply = ask(server, "certain")
    assert reply.status_code == 200 and reply.headers["x-headrace-target"] == "big"
    assert models(provider) == ["small-1", "big-1"]


def test_pairs_for_a_calibration(started: Callable[..., Any]) -> None:
    server, _, _ = started(big="no")
    body: Any = {"model": "auto", "messages": [{"role": "user", "content": "certain"}]}
    found = server.http().post("/v1/routes/score", json=body).json()
    assert found["score"] == pytest.approx(-0.1) and found["is_wrong"] and found["large"] == "no", found
    right = server.http().post("/v1/routes/score", json={**body, "label": "certain"}).json()
    assert not right["is_wrong"] and right["small_model"].endswith("small-1")


def test_weights_of_a_local_model_are_part_of_its_identity(tmp_path: Path) -> None:
    model = FakeModel()
    model.engine.go.set()
    remote = {"auto": {"targets": [model.name, "work/x"], "route": "cascade"}}
    providers = {"work": {"dialect": "openai_chat", "base_url": "http://127.0.0.1:9/v1"}}
    with running_server(model, remote=remote, providers=providers, store=str(tmp_path / "s")) as server:
        asked = [{"role": "user", "content": "hi"}]
        body = {"model": "auto", "messages": asked, "label": "x", "max_tokens": 2}
        found = server.http().post("/v1/routes/score", json=body).json()
        assert found["small_model"].startswith(f"local {model.name} b"), found
        assert found["score"] is None and found["is_wrong"]  # cut off: it is never accepted
