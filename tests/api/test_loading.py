"""A server whose model is still loading: it listens, says so, and takes requests as soon as it can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from fake import FakeModel

from headrace.api.app import create_app
from headrace.api.http.server import Server, bind
from headrace.config.sources import load_settings
from headrace.errors import CorruptFile
from headrace.loading.options import EngineOptions
from headrace.workers.model_entry import Policy
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
SPEC = ModelSpec(name="fake/model", model="fake/model", options=EngineOptions())


class Launching:
    """A launch that loads what `load` gives."""

    def __init__(self, load: Callable[[], FakeModel]) -> None:
        self._load = load

    def plan(self, memory_bytes: int | None) -> Any:
        return SimpleNamespace(total_bytes=2**20)

    def load(self, progress: object) -> Any:
        return self._load()

    def close(self) -> None:
        pass


@contextmanager
def loading(load: Callable[[], FakeModel]) -> Iterator[tuple[str, Server, threading.Event, threading.Thread]]:
    settings = load_settings({"port": 0}, environ={}, folders=[])
    listener = bind(settings)
    started = threading.Event()
    table = ModelManager([SPEC], lambda spec: Launching(load), Policy(memory_bytes=2**30))
    server = Server(create_app(table, settings), settings, started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server, started, thread
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def test_503_until_the_model_is_there() -> None:
    gate, model = threading.Event(), FakeModel()

    def load() -> FakeModel:
        gate.wait(20)
        return model

    with loading(load) as (url, _, started, _), httpx.Client(base_url=url, trust_env=False) as http:
        health = http.get("/health")
        assert (health.status_code, health.headers["retry-after"]) == (503, "1")
        assert health.json()["error"] == {
            "code": 503,
            "message": "Loading model",
            "type": "unavailable_error",
            "reason": "model_loading",
        }
        for refused in (
            http.get("/ready"),
            http.get("/v1/models"),
            http.get("/metrics"),
            http.post("/v1/chat/completions", json=BODY),
        ):
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "model_loading"
            assert refused.headers["retry-after"]
        assert http.get("/openapi.json").status_code == 200
        # The official client waits for as long as Retry-After says and then gets its answer.
        client = openai.OpenAI(
            base_url=url + "/v1", api_key="none", max_retries=9, http_client=httpx.Client(trust_env=False)
        )
        gate.set()
        assert client.chat.completions.create(model="fake/model", **BODY).choices[0].message.content
        assert started.is_set()
        client.close()


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    def load() -> FakeModel:
        raise CorruptFile("cut short")

    with loading(load) as (_, server, started, thread):
        thread.join(20)
        assert not thread.is_alive()
        assert isinstance(server.failure, CorruptFile)
        assert not started.is_set()


def test_a_stop_does_not_wait_for_the_model() -> None:
    gate = threading.Event()
    arrived = threading.Event()

    def load() -> FakeModel:
        arrived.set()
        gate.wait(20)
        raise CorruptFile("after the stop")

    with loading(load) as (_, server, _, thread):
        assert arrived.wait(10)
        server.handle_exit(15, None)
        thread.join(20)
        assert not thread.is_alive()
        gate.set()
    assert server.failure is None


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "headrace-load":
            thread.join(20)
