"""`headrace serve` as a program: it survives dying workers, changed settings and a full disk."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from stopped import stop
from tiny import tiny_model

BODY = {"prompt": "abc", "max_tokens": 20, "seed": 3, "temperature": 1.0}


@dataclass
class Served:
    """A running server, in its own folder with a headrace.toml."""

    process: subprocess.Popen[str]
    folder: Path
    log: Path
    url: str = ""
    clients: list[httpx.Client] = field(default_factory=list)

    def http(self) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.clients.append(client)
        return client

    def workers(self) -> list[int]:
        """The workers, which one of the server's children has forked where the system can."""
        children = children_of(self.process.pid)
        parents = [one for one in children if b"fork_parent" in Path(f"/proc/{one}/cmdline").read_bytes()]
        return children_of(*parents) if parents else children

    def configure(self, text: str) -> None:
        (self.folder / "headrace.toml").write_text(text)

    def reload(self, said: str = "settings reloaded") -> None:
        before = self.log.read_text().count(said)
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self.log.read_text().count(said) > before)


def children_of(*processes: int) -> list[int]:
    found: list[int] = []
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(FileNotFoundError):  # it has ended
                found += map(int, (thread / "children").read_text().split())
    return found


def until(said: Callable[[], bool]) -> None:
    """Wait for a state that has no notification."""
    deadline_s = time.monotonic() + 60
    while not said():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tiny models."""
    folder = tmp_path_factory.mktemp("models")
    for golden in ("llama3", "qwen3"):
        tiny_model(folder, golden)
    return folder


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers; each must exit with 0 and leave no process behind."""
    started: list[Served] = []

    def start(*arguments: str, **environment: str) -> Served:
        log = tmp_path / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "serve", "--port", "0", "--threads", "1", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=tmp_path,
                env={**os.environ, **environment},
            )
        served = Served(process, tmp_path, log)
        started.append(served)
        assert served.process.stdout is not None
        line = served.process.stdout.readline()
        found = re.search(r"on (http://\S+)", line)
        assert found, (line, log.read_text())
        served.url = found[1]
        return served

    yield start
    for served in started:
        workers = served.workers() if served.process.poll() is None else []
        served.process.terminate()
        assert served.process.wait(30) == 0, served.log.read_text()
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        assert served.process.stdout is not None
        served.process.stdout.close()
        for client in served.clients:
            client.close()


def metric(http: httpx.Client, name: str, **labels: str) -> float:
    shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
    [value] = re.findall(rf"^{re.escape(f'{name}{{{shown}}}')} (\S+)$", http.get("/metrics").text, re.M)
    return float(value)


def stream(http: httpx.Client, body: dict[str, Any], lines: queue.SimpleQueue[str | None]) -> None:
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        for line in reply.iter_lines():
            if line:
                lines.put(line)
    lines.put(None)


def rest(lines: queue.SimpleQueue[str | None]) -> list[str]:
    found: list[str] = []
    while (line := lines.get(timeout=60)) is not None:
        found.append(line)
    return found


def test_a_killed_worker_is_a_pause_for_its_streams(serve: Callable[..., Served], models: Path) -> None:
    """F1: streams that had begun go on to the same bytes, as do requests that waited; PID and socket stay."""
    served = serve(str(models / "llama3"))
    http = served.http()
    expected = http.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
    long = {**BODY, "n": 8, "max_tokens": 100}
    whole: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stream(served.http(), long, whole)
    [worker] = served.workers()
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    begun = threading.Thread(target=stream, args=(served.http(), long, lines))
    begun.start()
    first = lines.get(timeout=60)
    assert first and first.startswith("data: {")
    stop(worker)
    answers: list[str] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            served.http().post("/v1/completions", json=BODY).json()["choices"][0]["text"]
        )
    )
    waiting.start()
    until(lambda: in_use(http) == 2)
    killed_s = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    resumed = [first, *rest(lines)]
    print(f"stream ended {time.monotonic() - killed_s:.2f} s after the kill")
    assert resumed[-1] == "data: [DONE]"
    assert texts_of(resumed) == texts_of(rest(whole))
    waiting.join(60)
    assert answers == [expected]
    begun.join(60)
    [other] = served.workers()
    assert other != worker
    assert http.get("/health").json()["models"] == {"llama3": "loaded"}
    assert metric(http, "headrace_worker_restarts_total", model="llama3") == 1


def texts_of(lines: list[str]) -> dict[int, str]:
    """The text of each choice of a stream of completions."""
    texts: dict[int, str] = {}
    for line in lines:
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def in_use(http: httpx.Client) -> int:
    return sum(card["in_use"] for card in http.get("/v1/models").json()["data"])


def test_a_second_sigterm_ends_streams_with_an_error(serve: Callable[..., Served], models: Path) -> None:
    """F2: in-flight requests end with an event by the deadline, exit 0, no orphans (checked by the
    fixture).
    """
    served = serve(str(models / "llama3"), "--shutdown-timeout", "60")
    http = served.http()
    [worker] = served.workers()
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    body = {**BODY, "n": 128, "max_tokens": 100}
    thread = threading.Thread(target=stream, args=(served.http(), body, lines))
    thread.start()
    assert lines.get(timeout=60)
    stop(worker)
    served.process.terminate()
    until(lambda: http.get("/ready").status_code == 503)
    refused = http.post("/v1/completions", json=BODY)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    served.process.terminate()
    os.kill(worker, signal.SIGCONT)
    assert '"engine_stopped"' in rest(lines)[-1]
    thread.join(60)
    assert served.process.wait(30) == 0


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"guided_regex": "[a-z]{3}"}, marks=pytest.mark.nightly)],
    ids=["plain", "with a grammar"],
)
def test_health_says_that_a_worker_stands_still(
    serve: Callable[..., Served], models: Path, more: dict[str, str]
) -> None:
    """A stopped process with work, or a grammar to compile: 503 after seconds, 200 when it goes on."""
    served = serve(str(models / "llama3"))
    http = served.http()
    http.post("/v1/completions", json=BODY).raise_for_status()
    [worker] = served.workers()
    stop(worker)
    answers: list[int] = []
    waiting = threading.Thread(
        target=lambda: answers.append(served.http().post("/v1/completions", json=BODY | more).status_code)
    )
    assert http.get("/health").status_code == 200
    waiting.start()
    start_s = time.monotonic()
    until(lambda: http.get("/health").status_code == 503)
    stalled_s = time.monotonic() - start_s
    message = http.get("/health").json()["error"]["message"]
    os.kill(worker, signal.SIGCONT)
    waiting.join(60)
    until(lambda: http.get("/health").status_code == 200)
    assert answers == [200]
    assert "made no step" in message and "1 waiting" in message
    assert stalled_s > 4, "a step may take some seconds"


def test_a_worker_has_no_secrets(serve: Callable[..., Served], models: Path, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        '[providers.work]\ndialect = "openai_chat"\nbase_url = "http://127.0.0.1:1/v1"\n'
        'api_key_env = "WORK_ACCESS"\n'
    )
    secrets = {
        "HEADRACE_API_KEY": "sesame-1",
        "HEADRACE_ADMIN_API_KEY": "sesame-2",
        "HF_TOKEN": "sesame-3",
        "AWS_SECRET_ACCESS_KEY": "sesame-4",
        "DB_PASSWORD": "sesame-5",
        "HEADRACE_MASTER_KEY": "sesame-6-of-16-characters",
        "WORK_ACCESS": "sesame-7",
    }
    served = serve(str(models / "llama3"), HEADRACE_KV_CACHE_DTYPE="bf16", **secrets)
    [worker] = served.workers()
    environment = Path(f"/proc/{worker}/environ").read_bytes()
    assert b"sesame" not in environment and b"HEADRACE_KV_CACHE_DTYPE=bf16" in environment
    assert b"sesame" not in Path(f"/proc/{worker}/cmdline").read_bytes()
    http = served.http()
    assert http.get("/v1/models").status_code == 401
    assert http.get("/v1/models", headers={"authorization": "Bearer sesame-1"}).status_code == 200


def test_a_damaged_cache_is_packed_again(serve: Callable[..., Served], models: Path, tmp_path: Path) -> None:
    arguments = (str(models / "llama3"), "--cache-dir", str(tmp_path / "cache"))
    first = serve(*arguments)
    expected = first.http().post("/v1/completions", json=BODY).json()["choices"]
    first.process.terminate()
    assert first.process.wait(30) == 0
    [path] = (tmp_path / "cache").rglob("*.packed")
    good = path.read_bytes()
    path.write_bytes(good[:8192] + bytes(len(good) - 8192))
    second = serve(*arguments)
    http = second.http()
    assert http.post("/v1/completions", json=BODY).json()["choices"] == expected
    assert metric(http, "headrace_cache_damages_total", model="llama3") == 1
    assert "checksum" in second.log.read_text()
    assert path.read_bytes() == good


def test_two_models_in_one_budget(serve: Callable[..., Served], models: Path) -> None:
    names = [str(models / "llama3"), str(models / "qwen3")]
    served = serve(*names, "--memory", "400M", "--kv-cache-memory", "200K")
    http = served.http()
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert {name: card["state"] for name, card in cards.items()} == {"llama3": "loaded", "qwen3": "unloaded"}
    assert cards["qwen3"]["context_length"] is None
    first = http.post("/v1/completions", json={**BODY, "model": "llama3"}).json()
    assert http.post("/v1/completions", json={**BODY, "model": "qwen3"}).json()["model"] == "qwen3"
    assert len(served.workers()) == 2
    assert http.post("/v1/models/llama3/unload").json()["state"] == "unloaded"
    until(lambda: len(served.workers()) == 1)
    assert http.get("/ready").status_code == 200
    assert (
        http.post("/v1/completions", json={**BODY, "model": "llama3"}).json()["choices"] == first["choices"]
    )
    missing = http.post("/v1/completions", json={**BODY, "model": "../llama3"})
    assert missing.status_code == 404
    assert "'llama3', 'qwen3'" in missing.json()["error"]["message"]
    for command, said in (("ps", "qwen3 .*loaded"), ("stop", "qwen3 is unloaded")):
        arguments = [command, *(["qwen3"] if command == "stop" else [])]
        port = served.url.rpartition(":")[2]
        result = subprocess.run(
            [sys.executable, "-m", "headrace", *arguments, "--port", port], capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        assert re.search(said, result.stdout)
    assert metric(http, "headrace_model_state", model="qwen3", state="unloaded") == 1
    for name in ("headrace_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"):
        assert re.findall(rf'^{name}{{.*"qwen3".*}} (\S+)$', http.get("/metrics").text, re.M) == ["0.0"]


def test_reload_does_not_interrupt_a_stream(
    serve: Callable[..., Served], models: Path, tmp_path: Path
) -> None:
    toml = f'[models.first]\npath = "{models}/llama3"\naliases = ["one"]\n'
    (tmp_path / "headrace.toml").write_text(toml)
    served = serve()
    http = served.http()
    [worker] = served.workers()
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    body = {**BODY, "model": "one", "n": 128, "max_tokens": 60}
    thread = threading.Thread(target=stream, args=(served.http(), body, lines))
    thread.start()
    assert lines.get(timeout=60)
    stop(worker)
    served.configure("[models.first\n")
    served.reload("settings are unchanged")
    served.configure(toml + "[models.second]\ncontexts = 3\n")
    served.reload("unknown 'contexts'")
    assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["first"]
    second = f'[models.second]\npath = "{models}/qwen3"\nmax_model_len = 32\n'
    served.configure('admin_api_key = ["secret"]\n' + second + toml.replace("llama3", "qwen3"))
    served.reload()
    assert http.get("/v1/models").status_code == 401
    http.headers["authorization"] = "Bearer secret"
    assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["second", "first"]
    http.post("/v1/models/second/load").raise_for_status()
    assert http.get("/v1/models/second").json()["context_length"] == 32
    os.kill(worker, signal.SIGCONT)  # its model has been replaced, its stream continues
    assert rest(lines)[-1] == "data: [DONE]"
    thread.join(60)
    until(lambda: worker not in served.workers())
    served.configure("")  # stop this server like the others at the end of the test


def test_a_full_disk_affects_only_log_lines_and_the_cache(
    serve: Callable[..., Served], models: Path, tmp_path: Path
) -> None:
    """F3: every write to the cache and every use of the store fails as on a full disk."""
    cache, store = tmp_path / "cache", tmp_path / "store.sqlite3"
    arguments = (str(models / "llama3"), "--cache-dir", str(cache), "--store", str(store), "--log-requests")
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os, sqlite3\n"
        "def full(*arguments): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "os.ftruncate = full\n"
        "connect = sqlite3.connect\n"
        "def refuse(*arguments, **options):\n"
        "    raise sqlite3.OperationalError('database or disk is full')\n"
        "sqlite3.connect = refuse\n"
    )
    served = serve(*arguments, PYTHONPATH=str(tmp_path))
    http = served.http()
    for _ in range(3):
        assert http.post("/v1/completions", json=BODY).status_code == 200
    assert metric(http, "headrace_cache_failures_total", model="llama3") == 1
    until(lambda: metric(http, "headrace_log_failures_total", model="llama3") == 3)
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert "not cached (No space left on device)" in served.log.read_text()
