"""GET /v1/live: the figures, who may read them, and how many at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
from in_process import Running

from headrace.api.web.live import MAX_READERS_OF_CLIENT

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def followed(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def one_event(server: Running, **options: Any) -> dict[str, Any]:
    with server.http(**options).stream("GET", "/v1/live") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        return next(followed(stream))


def test_the_figures_are_those_of_the_metrics(server: Running) -> None:
    http = server.http()
    for _ in range(2):
        assert http.post(CHAT, json=BODY).status_code == 200
    event = one_event(server)
    (model,) = event["models"]
    metrics = http.get("/metrics").text
    for name, metric in (
        ("generation_tokens", "headrace_generation_tokens_total"),
        ("prompt_tokens", "headrace_prompt_tokens_total"),
        ("cache_queries", "headrace_prefix_cache_queries_total"),
        ("running", "headrace_requests_running"),
    ):
        assert f'{metric}{{model="fake/model"}} {float(model[name])}' in metrics
    assert sum(model["first_token"]) == sum(model["per_token"]) == 2
    assert sum(model["between_tokens"]) == 8
    assert len(model["first_token"]) == len(event["bounds_s"]) + 1
    assert model["pages"] == {"used": 0, "cached": 0, "free": 100}
    assert model["memory"] == {"weights": 0, "kv_cache": 102_400, "other": 307_200}
    assert (model["state"], model["max_running"], model["step_bytes"]) == ("loaded", 32, 1000)
    assert model["replicas"] is None, "one process serves it"
    assert event["replies"] == {"200": 2}
    assert event["started_s"] < event["now_s"]


def test_an_event_comes_every_second_and_shows_what_has_changed(server: Running) -> None:
    with server.http().stream("GET", "/v1/live") as stream:
        events = followed(stream)
        first = next(events)
        server.http().post(CHAT, json=BODY)
        second = next(events)
    assert second["models"][0]["generation_tokens"] - first["models"][0]["generation_tokens"] == 6


def test_any_key_reads_it_and_none_does_not(serve: Callable[..., Running]) -> None:
    server = serve(api_key="secret")
    assert server.http().get("/v1/live").status_code == 401
    assert one_event(server, headers={"authorization": "Bearer secret"})["models"]


def test_it_goes_with_the_metrics(serve: Callable[..., Running]) -> None:
    refused = serve(disable_metrics=True).http().get("/v1/live")
    assert refused.status_code == 501 and "disable_metrics" in refused.json()["error"]["message"]


def test_a_client_has_a_few_streams_and_gets_them_back(server: Running) -> None:
    with ExitStack() as open_streams:
        streams = [
            followed(open_streams.enter_context(server.http().stream("GET", "/v1/live")))
            for _ in range(MAX_READERS_OF_CLIENT)
        ]
        assert all(next(stream)["models"] for stream in streams)
        with server.http().stream("GET", "/v1/live") as refused:
            assert refused.status_code == 429 and refused.headers["retry-after"]
            assert json.loads(refused.read())["error"]["code"] == "rate_limit_exceeded"
    deadline_s = time.monotonic() + 20
    while True:  # the server hears a moment later that they are gone
        with server.http().stream("GET", "/v1/live") as stream:
            if stream.status_code == 200:
                break
        assert time.monotonic() < deadline_s


def test_a_server_that_stops_ends_the_stream(server: Running) -> None:
    ended = threading.Event()
    with server.http().stream("GET", "/v1/live") as stream:
        events = followed(stream)
        next(events)
        server.server.should_exit = True
        for _ in events:
            pass
        ended.set()
    assert ended.is_set()
