"""`headrace bench endpoints` as a command, and what the server shows of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fake import FakeModel
from in_process import Running, running_server
from invocation import Outcome

from headrace.storage.database import Database
from headrace.storage.probes import Probes

pytest.importorskip("aiohttp", reason="the extra gateway is not installed")

FILE = """
[probe]
prompt_tokens = [100]
parallel = [1, 2]
output_tokens = 4
quality_tokens = 8

[endpoints.here]
kind = "headrace"
base_url = "{url}/v1"
model = "fake/model"
price = {{ input = 1, output = 4 }}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    model = FakeModel()
    model.engine.go.set()
    with running_server(model, store=str(tmp_path / "store")) as running:
        (tmp_path / "endpoints.toml").write_text(FILE.format(url=running.url))
        yield running


def flags(tmp_path: Path, *more: str) -> list[str]:
    return ["bench", "endpoints", "endpoints.toml", "--store", str(tmp_path / "store"), *more]


def test_tables_json_plot_and_the_server(
    inside: Callable[..., Outcome], server: Running, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    done = inside(*flags(tmp_path))
    assert done.code == 0, done.stderr
    for text in ("here", "TOK/S", "BLENDED", "1.75", "max_tokens", "VERDICT"):
        assert text in done.stdout
    shown = inside(*flags(tmp_path, "--show", "--json", "--plot", "out.png"))
    (found,) = json.loads(shown.stdout)
    assert found["endpoint"] == "here" and found["blended"] == 1.75
    assert [(one["parallel"], one["samples"]) for one in found["speed"]] == [(1, 1), (2, 2)]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    reply = server.http().get("/v1/probes")
    assert reply.status_code == 200, reply.text
    assert reply.json() == {"object": "list", "data": [found]}
    assert server.http().get("/v1/probes", params={"endpoint": "other"}).json()["data"] == []


def test_nothing_is_kept_yet(inside: Callable[..., Outcome], server: Running, tmp_path: Path) -> None:
    done = inside(*flags(tmp_path, "--show"))
    assert (done.code, done.stdout) == (0, "") and "no probes" in done.stderr


def test_the_list_is_for_administrators(tmp_path: Path) -> None:
    with running_server(FakeModel(), api_key="user-key", admin_api_key="admin-key") as running:
        codes = [
            httpx.get(running.url + "/v1/probes", headers={"authorization": f"Bearer {key}"}).status_code
            for key in ("user-key", "admin-key", "none")
        ]
    assert codes == [403, 200, 401]


@pytest.mark.parametrize("every", ["3", "h", "0h", "1s", "xh", "nanh", "30d"])
def test_a_time_that_is_none(
    every: str, inside: Callable[..., Outcome], server: Running, tmp_path: Path
) -> None:
    done = inside(*flags(tmp_path, "--every", every))
    assert done.code == 2 and "from 10s to 14d" in done.stderr


def test_an_endpoint_without_a_price(inside: Callable[..., Outcome], server: Running, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text(file.read_text().replace("price = ", "# "))
    done = inside(*flags(tmp_path))
    assert done.code == 2 and "no budget can be kept" in done.stderr and "price = {" in done.stderr


def test_an_interrupted_probe_keeps_what_it_has(
    server: Running, environment: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *flags(tmp_path, "--every", "1h")],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    probes = Probes(Database(tmp_path / "store"))
    until_s = time.monotonic() + 60
    while not any(row.kind == "speed" for row in probes.since(0)):
        assert time.monotonic() < until_s and process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "what was measured is kept" in err, err
    assert "Traceback" not in err and "TOK/S" in out
