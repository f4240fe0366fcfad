"""The response cache over HTTP, with a real model: the bytes of hits and drafts are the model's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Running, running_server

from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions

NEAR = {"near": "draft"}


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    loaded = load_model("mini", EngineOptions(max_num_seqs=8))
    yield loaded
    loaded.close()


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0} | more


def ask(server: Running, text: str, path: str = "/v1/chat/completions", **more: Any) -> tuple[str, Any]:
    headers = more.pop("headers", {})
    reply = server.http().post(path, json=body(text, **more), headers=headers)
    assert reply.status_code == 200, reply.text
    time.sleep(0.05)  # it is kept after the reply
    return reply.headers["x-headrace-cache"], reply


def test_hits_have_the_bytes_of_the_first_reply(model: LoadedModel, tmp_path: Path) -> None:
    with running_server(model, cache={}, store=str(tmp_path / "store.sqlite3")) as server:
        first, one = ask(server, "extract a gzipped tar archive")
        again, other = ask(server, "extract a gzipped tar archive")
        assert (first, again) == ("none", "exact")
        assert (
            one.json()["choices"] == other.json()["choices"] and one.json()["usage"] == other.json()["usage"]
        )
        assert one.json()["id"] != other.json()["id"]
        header, streamed = ask(server, "extract a gzipped tar archive", stream=True)
        assert header == "exact" and streamed.text.endswith("data: [DONE]\n\n")
        for more in ({"cache": False}, {"headers": {"cache-control": "no-store"}}, {"temperature": 0.8}):
            assert ask(server, "extract a gzipped tar archive", **more)[0] == "none"
        asked = {"model": model.name, "max_tokens": 24, "temperature": 0}
        messages = [{"role": "user", "content": "list the files of a folder"}]
        for expected in ("none", "exact"):
            reply = server.http().post("/v1/messages", json=asked | {"messages": messages})
            assert reply.headers["x-headrace-cache"] == expected
            time.sleep(0.05)
        metrics = server.http().get("/metrics").text
        assert f'headrace_response_cache_total{{model="{model.name}",outcome="exact"}} 3.0' in metrics
    with running_server(model, cache={}, store=str(tmp_path / "store.sqlite3")) as server:
        assert ask(server, "extract a gzipped tar archive")[0] == "exact"  # after a restart


def test_drafts_change_no_byte(model: LoadedModel, tmp_path: Path) -> None:
    pairs = [
        (f"show the {noun} of a file", f"show the {noun} of this file") for noun in ("size", "owner", "type")
    ]
    with running_server(model, store=str(tmp_path / "a.sqlite3")) as plain:
        wanted = []
        for _, question in pairs:
            for more in ({}, {"temperature": 0.9, "seed": 5}):
                reply = plain.http().post("/v1/chat/completions", json=body(question, **more))
                assert "x-headrace-cache" not in reply.headers
                wanted.append(reply.json()["choices"])
    with running_server(model, cache=NEAR, store=str(tmp_path / "b.sqlite3")) as cached:
        found, headers = [], []
        for first, question in pairs:
            for more in ({}, {"temperature": 0.9, "seed": 5}):
                ask(cached, first, **more)
                header, reply = ask(cached, question, **more)
                headers.append(header)
                found.append(reply.json()["choices"])
    assert found == wanted and headers == ["draft"] * 6


def test_keys_do_not_share(model: LoadedModel, tmp_path: Path) -> None:
    flags = {"cache": NEAR, "api_key": ["sk-ann", "sk-eve"], "store": str(tmp_path / "c.sqlite3")}
    with running_server(model, **flags) as server:
        said = [
            ask(server, "count the lines", headers={"authorization": f"Bearer {key}"})[0]
            for key in ("sk-ann", "sk-eve", "sk-ann", "sk-eve")
        ]
    assert said == ["none", "none", "exact", "exact"]


def test_a_model_that_is_not_to_stay_is_not_looked_at(model: LoadedModel, tmp_path: Path) -> None:
    """To look at it would load it before the request, and once more after it."""
    with running_server(model, cache={}, store=str(tmp_path / "d.sqlite3")) as server:
        for kept, expected in ((0, ["none", "none"]), ("5m", ["none", "exact"])):
            asked = {"model": model.name, "stream": False, "options": {"temperature": 0, "num_predict": 5}}
            for header in expected:
                messages = [{"role": "user", "content": "sort a file"}]
                reply = server.http().post(
                    "/api/chat", json=asked | {"messages": messages, "keep_alive": kept}
                )
                assert reply.status_code == 200 and reply.headers["x-headrace-cache"] == header, reply.text
                time.sleep(0.05)
