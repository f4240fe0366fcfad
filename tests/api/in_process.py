"""A server in a thread of this process, on a free port of the loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import httpx2
import ollama
import openai
import uvicorn.server
from msgspec.structs import replace

from headrace.api.app import create_app
from headrace.api.http.server import Server, bind
from headrace.chat.templates.chat_template import ChatTemplate
from headrace.cli.serve_settings import flight_servers
from headrace.config.settings import Settings
from headrace.config.sources import load_settings
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.workers.model_manager import ModelManager
from headrace.workers.model_spec import ModelSpec

REASONING_TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n{# </think> #}"


async def _short_sleep(delay_s: float) -> None:
    await asyncio.sleep(min(delay_s, 0.01))


# uvicorn looks every 0.1 s whether it should stop, and then waits 0.1 s for connections: with a server for
# each test that was a quarter of the time of all tests of the API.
uvicorn.server.asyncio = SimpleNamespace(**vars(asyncio) | {"sleep": _short_sleep})  # type: ignore[assignment]


@dataclass
class Running:
    """A server under test."""

    url: str
    port: int
    model: Any
    server: Server
    thread: threading.Thread
    clients: ExitStack
    beside: Sequence[Any] = ()

    def http(self, **options: Any) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=20, trust_env=False, **options)
        return self.clients.enter_context(client)

    def openai(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 20.0} | options
        client = self.clients.enter_context(httpx.Client(trust_env=False))
        return openai.OpenAI(base_url=self.url + "/v1", http_client=client, **options)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        options = {"api_key": "none", "max_retries": 0, "timeout": 20.0} | options
        client = self.clients.enter_context(httpx2.Client(trust_env=False))
        return anthropic.Anthropic(base_url=self.url, http_client=client, **options)

    def async_openai(self) -> openai.AsyncOpenAI:
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(trust_env=False, limits=limits, timeout=60)
        return openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key="none", max_retries=0, http_client=client
        )

    def ollama(self, **options: Any) -> ollama.Client:
        client = ollama.Client(host=self.url, trust_env=False, **({"timeout": 20.0} | options))
        self.clients.callback(client.close)
        return client

    def async_ollama(self) -> ollama.AsyncClient:
        return ollama.AsyncClient(host=self.url, trust_env=False, timeout=60)


def raw(server: Running, data: bytes) -> bytes:
    """Send bytes as they are; what comes back until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        reply = b""
        while part := connection.recv(65536):
            reply += part
        return reply


@contextmanager
def running_server(model: Any, *, remote: Any = None, **flags: Any) -> Iterator[Running]:
    """`remote` are entries of [models] that are answered elsewhere."""
    settings: Settings = load_settings({"port": 0, "shutdown_timeout": 5, **flags}, environ={}, folders=[])
    listener = bind(settings)
    port = listener.getsockname()[1]
    app = create_app(model, settings, remote)
    beside = flight_servers(app, settings, "127.0.0.1")
    server = Server(app, settings, lambda: None, beside=beside)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        with ExitStack() as clients:
            yield Running(f"http://127.0.0.1:{port}", port, model, server, thread, clients, beside)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def shipped_model_server(template: str, *, store: str | None = None, **options: Any) -> Iterator[Running]:
    """A server of the shipped model, whose prompts are made by another template."""
    model = load_model("novelette", EngineOptions(**options))
    flags = {} if store is None else {"store": store}
    with running_server(replace(model, template=ChatTemplate(template)), **flags) as running:
        yield running
    model.close()


@contextmanager
def server_of(*models: Any, **flags: Any) -> Iterator[Running]:
    """A server of several loaded models, the first the default one; they stay the caller's to close."""
    specs = [ModelSpec(name=model.name, model=model.name, options=EngineOptions()) for model in models]
    table = ModelManager.fixed(models[0], specs[0])
    for model, spec in zip(models[1:], specs[1:], strict=True):
        other = ModelManager.fixed(model, spec).default
        table._entries[spec.name] = other  # type: ignore[attr-defined]
    with running_server(table, **flags) as running:
        yield running
