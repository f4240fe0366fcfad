"""`headrace cluster serve` as a program, with OpenAI's client and the commands that manage it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace.cli import main as command_line
from headrace.engine.client import LoadedModel

KEYS = ("--api-key", "user-key", "--admin-api-key", "admin-key")


@pytest.fixture
def url(folder: Path, tmp_path: Path) -> Iterator[str]:
    """A server with two replicas, which must end well."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment["XDG_CONFIG_HOME"] = str(tmp_path)
    (tmp_path / "headrace.toml").write_text("[cluster]\nreplicas = 1\nmax = 3\n")
    command = [sys.executable, "-m", "headrace", "cluster", "serve", str(folder), "--port", "0"]
    command += ["--replicas", "2", "--store", str(tmp_path / "store.sqlite3"), "--max-num-seqs", "8", *KEYS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdout
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        try:
            assert found, "the server did not start"
            yield found[0]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def headrace(capsys: pytest.CaptureFixture[str], url: str, *words: str, key: str = "admin-key") -> Any:
    port = url.rpartition(":")[2]
    with pytest.raises(SystemExit) as stop:
        command_line.main(["cluster", *words, "--port", port, "--admin-api-key", key, "--json"])
    out, error = capsys.readouterr()
    return json.loads(out) if stop.value.code == 0 else error


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def answer(client: openai.OpenAI, seed: int, then: Callable[[], None] = lambda: None) -> str:
    """A streamed completion; `then` is called after its first tokens."""
    parts: list[str] = []
    stream = client.completions.create(
        model="llama3", prompt="abc", max_tokens=300, seed=seed, stream=True, extra_body={"ignore_eos": True}
    )
    for number, chunk in enumerate(stream):
        parts.append(chunk.choices[0].text if chunk.choices else "")
        if number == 3:
            then()
    return "".join(parts)


def live_model(url: str) -> dict[str, Any]:
    """What the page shows of the model."""
    headers = {"authorization": "Bearer user-key"}
    with (
        httpx.Client(trust_env=False) as client,
        client.stream("GET", f"{url}/v1/live", headers=headers) as stream,
    ):
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
    (model,) = json.loads(line[6:])["models"]
    return model


def test_a_served_cluster(url: str, here: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="user-key", max_retries=0)
    name = client.models.list().data[0].id

    def replicas() -> list[dict[str, Any]]:
        return headrace(capsys, url, "status")[0]["replicas"]

    until(lambda: len(replicas()) == 2)
    (model,) = headrace(capsys, url, "status")
    assert model["id"] == name and model["policy"] == "kv" and model["problem"] is None
    assert (model["wanted"], model["nodes"], model["in_flight"], model["waiting"]) == (2, ["local"], 0, 0)
    live = live_model(url)
    one = here.plan
    assert (live["replicas"], live["max_running"]) == (2, 16)
    assert live["memory"]["weights"] == 2 * one.weights_bytes > 0
    undisturbed = answer(client, 1)

    killed: list[int] = []

    def kill() -> None:
        busy = [one["pid"] for one in replicas() if one["requests"]]
        for pid in busy[:1]:  # none where the answer has ended already
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    while not killed:
        assert answer(client, 1, kill) == undisturbed
    until(lambda: len(replicas()) == 2)
    before = {one["pid"] for one in replicas()}
    assert answer(client, 1, lambda: headrace(capsys, url, "replace")) == undisturbed
    until(lambda: len(replicas()) == 2 and before.isdisjoint(one["pid"] for one in replicas()))
    first = replicas()[0]
    assert headrace(capsys, url, "drain", str(first["replica"]))["id"] == name
    until(lambda: first["pid"] not in [one["pid"] for one in replicas()])
    assert "are those that its replicas have" in headrace(capsys, url, "update")
    assert "there is no replica 77" in headrace(capsys, url, "drain", "77")
    assert "admin" in headrace(capsys, url, "status", key="user-key")
    assert "admin" in headrace(capsys, url, "update", key="user-key")
    assert "does not know" in headrace(capsys, url, "status", key="nobody")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--replicas", "3", "--max", "2"), "min 3 and max 2"),
        (("--policy", "fastest"), "round-robin"),
        (("--replicas", "-1"), "cluster.replicas"),
    ],
)
def test_wrong_usage_is_named(words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command_line.main(["cluster", "serve", *words])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err
