"""`headrace explain` and `headrace requests`, against a server and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.cli import main as command_line

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
from in_process import Running, running_server

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "list files"}], "max_tokens": 4}


def headrace(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command_line.main(words)
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model = load_model("mini", EngineOptions())
    with running_server(model) as running:
        yield running
    model.close()


def test_requests_and_where_their_time_went(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--port", str(server.port))
    done = server.http().post(CHAT, json=BODY).headers["x-request-id"]
    server.http().post(CHAT, json={"n": 0}, headers={"x-request-id": "my-own"})
    assert headrace("requests", *flags) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.startswith("TIME") and done in first and "completed" in first
    assert "my-own" in second and "failed: missing_required_parameter" in second
    assert headrace("requests", "--status", "failed", "--json", *flags) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["my-own"]
    assert headrace("explain", done, *flags) == 0
    assert re.search(r"^ +prefill 1 +[\d.]+ ms", capsys.readouterr().out, re.M)
    assert headrace("explain", "my-own", "--id", "--json", *flags) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "request"
    assert headrace("explain", "req_0123", *flags) == 1
    assert headrace("explain", "req_" + "0" * 32, *flags) == 1
    assert "there is no request" in capsys.readouterr().err
    assert headrace("explain", "list files?", "--id", *flags) == 1  # which no id can be
    assert "there is no request 'list files?'" in capsys.readouterr().err


def test_what_clients_send_does_not_steer_the_terminal(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    server.http().post("/v1/%1B%5D0;owned%07")
    assert headrace("requests", "--port", str(server.port)) == 0
    shown = capsys.readouterr().out
    assert r"/v1/\x1b]0;owned\x07" in shown and "\x1b" not in shown and "\x07" not in shown


def test_a_prompt_is_not_computed(capsys: pytest.CaptureFixture[str]) -> None:
    assert headrace("explain", "list all files", "--max-tokens", "9", "--json") == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["detail"] == {"computed": False}
    engine = tree["children"][-1]
    assert engine["detail"]["output_tokens"] == 9 and engine["detail"]["model"] == "mini"
    assert headrace("explain", "list all files") == 0
    assert "kv pages" in capsys.readouterr().out


def test_follow_goes_on_until_it_is_interrupted(server: Running) -> None:
    command = [sys.executable, "-m", "headrace", "requests", "-f", "--json", "--port", str(server.port)]
    following = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"}
    )
    assert following.stdout is not None
    try:
        seen: set[str] = set()
        number = 0
        while "late-3" not in seen:
            time.sleep(0.3)
            server.http().post(CHAT, json=BODY, headers={"x-request-id": f"late-{number}"})
            if number >= 3:
                seen.add(json.loads(following.stdout.readline())["id"])
            number += 1
        following.send_signal(signal.SIGINT)
        assert following.wait(10) == 130
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_lines_of_json_name_the_trace_and_not_the_text(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "serve", "mini", "--port", "0", "--log-format", "json"]
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stderr is not None and process.stdout is not None
        try:
            found = re.search(r"on (http://127.0.0.1:\d+)", process.stdout.readline())
            assert found is not None
            with httpx.Client(base_url=found[1], trust_env=False, timeout=20) as http:
                headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "x-request-id": "mine"}
                content = {"messages": [{"role": "user", "content": "secretword"}], "max_tokens": 2}
                assert http.post(CHAT, json=content, headers=headers).status_code == 200
                lines = ""
                while '"request_id":"mine"' not in lines:
                    lines += process.stderr.readline()
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=20)[1]
    line = next(json.loads(one) for one in lines.splitlines() if one.startswith("{"))
    assert (line["trace_id"], line["path"], line["status"]) == (trace_id, CHAT, 200)
    assert line["output_tokens"] == 2 and line["outcome"] == "completed" and line["time"].endswith("+00:00")
    assert "secretword" not in lines + rest
