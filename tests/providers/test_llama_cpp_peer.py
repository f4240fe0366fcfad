"""A server of llama.cpp as the target: what it says directly is what comes through, byte for byte.

Its program is `llama-server` of PATH or LLAMA_SERVER, or the one inside the package xllamacpp (34 MB).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake import FakeModel
from in_process import Running, running_server

from test_gguf_models import stories_gguf

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
CONTEXT = 512
PACKAGED = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = sys.argv[1], int(sys.argv[2]), 512, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.hostnames, params.use_jinja, params.verbosity = ["127.0.0.1"], True, 0
server = xllamacpp.Server(params)
time.sleep(600)
"""
ASK: list[Any] = [{"role": "user", "content": "Once upon a time"}]
SCHEMA = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Bonn"]}},
    "required": ["town"],
    "additionalProperties": False,
}


def command(model: Path, port: int) -> list[str]:
    program = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if program is not None:
        flags = f"--port {port} --host 127.0.0.1 -c {CONTEXT} -np 1 -t 1 --jinja"
        return [program, "-m", str(model), *flags.split()]
    if find_spec("xllamacpp") is None:
        pytest.skip("no llama-server: set LLAMA_SERVER, or pip install xllamacpp")
    return [sys.executable, "-c", PACKAGED, str(model), str(port)]


@contextmanager
def llama_server(model: Path) -> Iterator[str]:
    """Its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    started = subprocess.Popen(command(model, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s and started.poll() is None:
            try:
                if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        else:
            pytest.skip("the server of llama.cpp does not start here")
        yield url
    finally:
        started.terminate()
        started.wait(20)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("llama")
    more = {"tokenizer.chat_template": TEMPLATE}
    with llama_server(stories_gguf(folder, shared_data / "stories260K", "F32", **more)) as url:
        yield url


@pytest.fixture(scope="module")
def server(target: str) -> Iterator[Running]:
    providers = {"there": {"kind": "llama_cpp", "base_url": f"{target}/v1"}}
    prices = {"there/stories": {"input": 1, "output": 2}}
    remote = {"far": {"provider": "there", "model": "stories"}}
    with running_server(FakeModel(), providers=providers, remote=remote, prices=prices) as running:
        yield running


def both(server: Running, target: str, path: str, own: Any = None, **body: Any) -> tuple[Any, Any]:
    """What the target says directly, with its `own` names of parameters, and through this server."""
    asked = body | (own or {}) | {"model": "stories"}
    direct = httpx.post(target + path, json=asked, timeout=60, trust_env=False)
    through = server.http().post(path, json=body | {"model": "far"})
    assert direct.status_code == through.status_code == 200, (direct.text, through.text)
    return direct.json(), through.json()


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0},
        {"temperature": 0.9, "seed": 7, "top_k": 20, "min_p": 0.02},
        {"temperature": 1.2, "seed": 3, "repetition_penalty": 1.2},
        {"temperature": 0, "stop": ["."]},
    ],
)
def test_a_chat(server: Running, target: str, more: dict[str, Any]) -> None:
    own = {"repeat_penalty": more.get("repetition_penalty", 1.0)}
    direct, through = both(server, target, "/v1/chat/completions", own, messages=ASK, max_tokens=40, **more)
    one, other = direct["choices"][0], through["choices"][0]
    assert other["message"]["content"] == one["message"]["content"] != ""
    assert other["finish_reason"] == one["finish_reason"]
    for name in ("prompt_tokens", "completion_tokens"):
        assert through["usage"][name] == direct["usage"][name]


def test_log_probabilities(server: Running, target: str) -> None:
    more = {"messages": ASK, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    direct, through = both(server, target, "/v1/chat/completions", **more)
    found = [
        [(one["token"], one["bytes"], [top["token"] for top in one["top_logprobs"]]) for one in tokens]
        for reply in (direct, through)
        for tokens in [reply["choices"][0]["logprobs"]["content"]]
    ]
    assert found[0] == found[1] and len(found[0]) == 4


@pytest.mark.parametrize("surface", ["stream", "responses", "anthropic", "ollama"])
def test_every_surface_has_the_same_text(server: Running, target: str, surface: str) -> None:
    direct, _ = both(server, target, "/v1/chat/completions", messages=ASK, max_tokens=24, temperature=0)
    assert said(server, surface) == direct["choices"][0]["message"]["content"].strip()


def said(server: Running, surface: str) -> str:
    asked: Any = {"model": "far", "messages": ASK}
    if surface == "responses":
        text: str = (
            server.openai()
            .responses.create(model="far", input=ASK[0]["content"], max_output_tokens=24, temperature=0)
            .output_text
        )
    elif surface == "anthropic":
        reply = server.anthropic().messages.create(**asked, max_tokens=24, extra_body={"temperature": 0})
        text = reply.content[0].text
    elif surface == "ollama":
        text = server.ollama().chat(**asked, options={"num_predict": 24, "temperature": 0}).message.content
    else:
        made = server.openai().chat.completions.create(**asked, stream=True, temperature=0, max_tokens=24)
        text = "".join(one.choices[0].delta.content or "" for one in made if one.choices)
    return text.strip()


def test_structured_output(server: Running, target: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    body = {"messages": ASK, "temperature": 0, "max_tokens": 100, "model": "far"}
    reply = server.http().post("/v1/chat/completions", json=body | {"response_format": form})
    assert reply.status_code == 200, reply.text
    assert json.loads(reply.json()["choices"][0]["message"]["content"])["town"] in ("Rome", "Bonn")
    grammar = {"guided_grammar": 'root ::= "yes" | "no"'}
    reply = server.http().post("/v1/chat/completions", json=body | grammar)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] in ("yes", "no")


def test_completions_of_texts_and_tokens(server: Running, target: str) -> None:
    more = {"max_tokens": 12, "temperature": 0}
    for prompt in ("Once upon a", [1, 403, 407, 261]):
        direct, through = both(server, target, "/v1/completions", prompt=prompt, **more)
        assert through["choices"][0]["text"] == direct["choices"][0]["text"] != ""


def test_a_prompt_that_is_too_long(server: Running) -> None:
    body = {"model": "far", "messages": [{"role": "user", "content": "word " * CONTEXT}], "max_tokens": 4}
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert "'far'" in reply.json()["error"]["message"]


def test_what_it_cannot_honor_is_refused(server: Running) -> None:
    body = {"model": "far", "messages": ASK, "guided_regex": "[a-z]+"}
    reply = server.http().post("/v1/chat/completions", json=body)
    assert reply.status_code == 400 and "regex" in reply.json()["error"]["message"], reply.text


def test_the_answer_is_booked(server: Running) -> None:
    body = {"model": "far", "messages": ASK, "max_tokens": 8, "temperature": 0}
    reply = server.http().post("/v1/chat/completions", json=body)
    used = reply.json()["usage"]
    cost = used["prompt_tokens"] * 1e-6 + used["completion_tokens"] * 2e-6
    assert float(reply.headers["x-headrace-cost-usd"]) == pytest.approx(cost)
