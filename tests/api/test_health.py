"""GET /health and /ready, and the drain."""

from __future__ import annotations

import threading

import pytest
from in_process import Running
from msgspec.structs import replace


@pytest.mark.parametrize(
    ("stalled_s", "longest_step_s", "healthy"),
    [(0.0, 0.0, True), (4.9, 0.1, True), (5.1, 0.1, False), (60.0, 20.0, True), (81.0, 20.0, False)],
)
def test_a_loop_with_work_must_make_steps(
    server: Running, monkeypatch: pytest.MonkeyPatch, stalled_s: float, longest_step_s: float, healthy: bool
) -> None:
    engine = server.model.engine
    now = replace(engine.status(), stalled_s=stalled_s, longest_step_s=longest_step_s)
    monkeypatch.setattr(engine, "status", lambda: now)
    reply = server.http().get("/health")
    assert reply.status_code == (200 if healthy else 503)
    assert healthy or "no step for" in reply.json()["error"]["message"]


def test_a_dead_engine_is_unhealthy_and_not_ready(server: Running) -> None:
    http = server.http()
    assert http.get("/health").json()["status"] == "ok"
    assert http.get("/ready").json() == {"status": "ready", "model": "fake/model"}
    server.model.engine.alive = False
    for path in ("/health", "/ready"):
        reply = http.get(path)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "engine_stopped"


def test_models(server: Running) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == ["fake/model"]
    assert client.models.retrieve("fake/model").owned_by == "headrace"


def test_a_model_that_the_caller_owns_is_not_unloaded(server: Running) -> None:
    http = server.http()
    card = http.get("/v1/models").json()["data"][0]
    assert (card["state"], card["in_use"], card["context_length"]) == ("loaded", 0, 4096)
    assert http.post("/v1/models/fake/model/load").json()["in_use"] == 1  # this call
    refused = http.post("/v1/models/fake/model/unload")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert http.post("/v1/models/other/load").status_code == 404
    assert http.get("/health").json()["models"] == {"fake/model": "loaded"}


def stream_in_background(server: Running) -> tuple[threading.Thread, list[str]]:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    texts: list[str] = []
    started = threading.Event()

    def read() -> None:
        with server.http().stream("POST", "/v1/chat/completions", json=body) as reply:
            started.set()
            texts.append(reply.read().decode())

    thread = threading.Thread(target=read)
    thread.start()
    assert started.wait(10)
    return thread, texts


def test_a_drain_lets_replies_finish_and_refuses_new_ones(server: Running) -> None:
    server.model.engine.go.clear()
    thread, texts = stream_in_background(server)
    http = server.http()
    server.server.handle_exit(15, None)
    while http.get("/ready").status_code == 200:
        pass
    refused = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    server.model.engine.go.set()
    thread.join(10)
    assert texts[0].endswith("data: [DONE]\n\n")
    server.thread.join(10)
    assert not server.thread.is_alive()


def test_a_second_signal_ends_replies_with_an_error(server: Running) -> None:
    server.model.engine.pause_s = 0.01
    server.model.engine.answer = "x" * 2000
    thread, texts = stream_in_background(server)
    server.server.handle_exit(15, None)
    server.server.handle_exit(15, None)
    thread.join(10)
    assert '"code":"engine_stopped"' in texts[0].split("\n\n")[-2]
    assert "[DONE]" not in texts[0]
    server.thread.join(10)
    assert not server.thread.is_alive()
