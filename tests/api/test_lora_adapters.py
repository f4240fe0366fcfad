"""Adapters over HTTP: loaded and unloaded without a restart, on every surface, by admins alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from peft_adapters import write_adapter
from tiny import tiny_model

ADMIN, CLIENT = {"authorization": "Bearer boss"}, {"authorization": "Bearer client"}
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
MESSAGES = [{"role": "user", "content": "hi"}]


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "serve", "--port", "0", "--threads", "1", *arguments],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=folder,
        env={**os.environ, "HEADRACE_STORE": str(folder / "store.db")},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"on (http://\S+)", process.stdout.readline())
        assert found, (folder / "log").read_text()
        with httpx.Client(base_url=found[1], timeout=60, trust_env=False) as http:
            yield http, process
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        log.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a folder of adapters, and an adapter outside of it."""
    folder = tmp_path_factory.mktemp("lora")
    model = tiny_model(folder, "llama3")
    for i, name in enumerate(("sql", "shell", "third")):
        write_adapter(folder / "adapters" / name, model, seed=i)
    write_adapter(folder / "outside", model, seed=7)
    (folder / "adapters" / "link").symlink_to(folder / "outside")
    return folder


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    keys = ("--api-key", "client", "--admin-api-key", "boss", "--adapter-dir", "adapters")
    with served(
        place, "./llama3", *keys, "--lora-modules", "given=adapters/third", "--cache", '{"exact": "auto"}'
    ) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: tuple[httpx.Client, subprocess.Popen[str]]) -> httpx.Client:
    return server[0]


def load(http: httpx.Client, name: str, path: str, **more: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path, **more}
    return http.post("/v1/load_lora_adapter", json=body, headers=ADMIN)


def unload(http: httpx.Client, name: str) -> httpx.Response:
    return http.post("/v1/unload_lora_adapter", json={"lora_name": name}, headers=ADMIN)


def answer(http: httpx.Client, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "messages": MESSAGES, **GREEDY, **more}
    return http.post("/v1/chat/completions", json=body, headers=CLIENT)


def text(http: httpx.Client, model: str, **more: Any) -> str:
    reply = answer(http, model, **more)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return reply.json()["choices"][0]["message"]["content"]


def test_loading_and_unloading(http: httpx.Client, place: Path) -> None:
    base, given = text(http, "llama3"), text(http, "llama3:given")
    assert base != given
    assert answer(http, "llama3:sql").status_code == 404
    reply = load(http, "sql", "sql")
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    assert load(http, "sql", "sql").status_code == 400
    sql = text(http, "llama3:sql")
    assert sql not in (base, given)
    assert text(http, "llama3") == base
    cards = {card["id"]: card for card in http.get("/v1/models", headers=CLIENT).json()["data"]}
    assert cards["llama3:sql"]["parent"] == cards["llama3:given"]["parent"] == "llama3"
    assert cards["llama3"]["parent"] is None
    assert cards["llama3:sql"]["memory_bytes"] > 0
    assert http.get("/v1/models/llama3:sql", headers=CLIENT).json()["id"] == "llama3:sql"
    # The same name with other weights: at once other answers, none from a cache.
    assert load(http, "sql", str(place / "adapters" / "shell"), load_inplace=True).status_code == 200
    assert text(http, "llama3:sql") not in (base, given, sql)
    assert unload(http, "sql").text == "Success: LoRA adapter 'sql' removed successfully."
    assert unload(http, "sql").status_code == 404
    assert answer(http, "llama3:sql").status_code == 404


def test_every_surface_takes_the_name(http: httpx.Client) -> None:
    load(http, "sql", "sql")
    name = "llama3:sql"
    expected = text(http, name)
    assert expected != text(http, "llama3")

    def post(path: str, body: dict[str, Any]) -> Any:
        reply = http.post(path, json=body, headers=CLIENT)
        assert reply.status_code == 200, reply.text
        return reply.json()

    options = {"temperature": 0, "num_predict": 12}
    replies = [
        post("/v1/messages", {"model": name, "messages": MESSAGES, **GREEDY})["content"][0]["text"],
        post("/v1/responses", {"model": name, "input": "hi", "max_output_tokens": 12, "temperature": 0})[
            "output"
        ][-1]["content"][0]["text"],
        post("/api/chat", {"model": name, "messages": MESSAGES, "stream": False, "options": options})[
            "message"
        ]["content"],
        post(
            f"/v1beta/models/{name}:generateContent",
            {
                "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
                "generationConfig": {"temperature": 0, "maxOutputTokens": 12},
            },
        )["candidates"][0]["content"]["parts"][0]["text"],
    ]
    assert replies == [expected] * 4
    with openai.OpenAI(
        base_url=f"{str(http.base_url).rstrip(chr(47))}/v1", api_key="client", max_retries=0
    ) as client:
        streamed = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "hi"}], stream=True, **GREEDY
        )
        chunks = list(streamed)
        line = {
            "custom_id": "1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": name, "messages": MESSAGES, **GREEDY},
        }
        file = client.files.create(file=("b.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        deadline_s = time.monotonic() + 60
        while (batch := client.batches.retrieve(batch.id)).output_file_id is None:
            assert time.monotonic() < deadline_s, batch
            time.sleep(0.05)
        said = json.loads(client.files.content(batch.output_file_id).text)["response"]["body"]
    assert (said["choices"][0]["message"]["content"], said["model"]) == (expected, name)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert {chunk.model for chunk in chunks} == {name}
    unload(http, "sql")


def test_the_response_cache_keeps_adapters_apart(http: httpx.Client) -> None:
    """One name, two adapters: the second must not be answered with what the first has said."""
    load(http, "one", "sql")
    first = [text(http, "llama3:one", cache=True) for _ in range(2)]
    unload(http, "one")
    load(http, "one", "shell")
    second = text(http, "llama3:one", cache=True)
    unload(http, "one")
    assert first[0] == first[1] != second
    assert second != text(http, "llama3", cache=True)


def test_only_admins_load_and_only_from_the_folder(http: httpx.Client, place: Path) -> None:
    for path in ("load", "unload"):
        body = {"lora_name": "x", "lora_path": "sql"} if path == "load" else {"lora_name": "given"}
        reply = http.post(f"/v1/{path}_lora_adapter", json=body, headers=CLIENT)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "missing_scope")
        assert http.post(f"/v1/{path}_lora_adapter", json=body).status_code == 401
    for path in ("../outside", str(place / "outside"), "link", ".", "/etc", "a\0b", "sql/../../outside"):
        reply = load(http, "x", path)
        assert reply.status_code == 400, path
        assert "not in the server's adapter_dir" in reply.json()["error"]["message"]
    assert load(http, "x", "none").status_code == 404
    for name in ("a:b", "../x", "latest", "a b", "é"):
        assert load(http, name, "sql").status_code == 400
    assert load(http, "x", "sql", model="none").status_code == 404


def test_unloading_lets_streams_end(http: httpx.Client) -> None:
    load(http, "sql", "sql")
    body = {"model": "llama3:sql", "prompt": "abc", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    expected = http.post("/v1/completions", json=body, headers=CLIENT).json()["choices"][0]["text"]
    pieces: list[str] = []
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=CLIENT) as reply:
        lines = reply.iter_lines()
        pieces.append(next(lines))
        gone = threading.Thread(target=unload, args=(http, "sql"))
        gone.start()
        pieces += lines
    gone.join()
    said = [json.loads(line[6:]) for line in pieces if line.startswith("data: {")]
    assert "".join(one["choices"][0]["text"] for one in said if one["choices"]) == expected
    assert answer(http, "llama3:sql").status_code == 404


def test_a_dead_worker_is_followed_by_one_with_the_adapters(
    server: tuple[httpx.Client, subprocess.Popen[str]],
) -> None:
    http, process = server
    load(http, "sql", "sql")
    before = [text(http, "llama3:sql", seed=1), text(http, "llama3:given", seed=1)]
    for worker in _workers(process.pid):
        os.kill(worker, signal.SIGKILL)
    body = {"model": "llama3:sql", "messages": MESSAGES, **GREEDY, "seed": 2}
    deadline_s = time.monotonic() + 60
    while http.post("/v1/chat/completions", json=body, headers=CLIENT).status_code != 200:
        assert time.monotonic() < deadline_s
    assert [text(http, "llama3:sql", seed=3), text(http, "llama3:given", seed=3)] == before
    # The whole model is unloaded and loaded again.
    http.post("/v1/models/llama3/unload", headers=ADMIN).raise_for_status()
    assert [text(http, "llama3:sql", seed=4), text(http, "llama3:given", seed=4)] == before
    unload(http, "sql")


def _workers(process: int) -> list[int]:
    children = _children(process)
    parents = [one for one in children if b"fork_parent" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return [grandchild for parent in parents for grandchild in _children(parent)] or children


def _children(process: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError):
            found += map(int, (thread / "children").read_text().split())
    return found


def test_an_open_server_loads_nothing_over_http(place: Path) -> None:
    toml = '[models.tiny]\npath = "./llama3"\nadapters = { sql = "adapters/sql", bad = "adapters/none" }\n'
    (place / "headrace.toml").write_text(toml)
    try:
        with served(place, "--adapter-dir", "adapters") as (http, _):
            for path, body in (
                ("load", {"lora_name": "x", "lora_path": "sql"}),
                ("unload", {"lora_name": "sql"}),
            ):
                reply = http.post(f"/v1/{path}_lora_adapter", json=body)
                assert reply.status_code == 501
                assert "--admin-api-key" in reply.json()["error"]["message"]
            assert text(http, "tiny:sql") != text(http, "tiny")
            reply = answer(http, "tiny:bad")
            assert (reply.status_code, "there is no adapter" in reply.text) == (404, True)
    finally:
        (place / "headrace.toml").unlink()
