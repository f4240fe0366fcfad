"""Responses that are kept: continued, read back, made in the background, stopped, forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from fake import FakeEngine, FakeModel, FakeTemplate
from in_process import Running, running_server

from headrace.errors import StoreError
from headrace.inference.response_store import INTERRUPTED
from headrace.storage import responses as store
from headrace.storage.database import Database
from headrace.storage.responses import Responses, StoredItem

MODEL = "fake/model"
Serve = Callable[..., Running]


def ask(server: Running, key: str = "none", **more: Any) -> Any:
    client = server.openai(api_key=key)
    return client.responses.create(**({"model": MODEL, "input": "hello"} | more))


def prompt_of(server: Running) -> str:
    return bytes(server.model.engine.submitted[-1].prompt).decode()


def ended(client: openai.OpenAI, response_id: str) -> Any:
    while (response := client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
        pass
    return response


def test_a_conversation_goes_on(server: Running) -> None:
    first = ask(server, instructions="Be kind.", max_output_tokens=1)
    second = ask(server, input="b", previous_response_id=first.id, max_output_tokens=1)
    assert second.previous_response_id == first.id
    # Instructions belong to one response, they are not carried over.
    assert prompt_of(server) == "user: hello\nassistant: a\nuser: b\nassistant:"
    ask(server, input="c", previous_response_id=second.id, instructions="Be brief.")
    before = "system: Be brief.\nuser: hello\nassistant: a\nuser: b\nassistant: a"
    assert prompt_of(server) == f"{before}\nuser: c\nassistant:"


def test_without_input_what_is_kept_is_answered(server: Running) -> None:
    first = ask(server, max_output_tokens=1)
    client = server.openai()
    client.responses.create(model=MODEL, previous_response_id=first.id, max_output_tokens=1)
    assert prompt_of(server) == "user: hello\nassistant: a\nassistant:"
    client.responses.create(model=MODEL, instructions="Be kind.")
    assert prompt_of(server) == "system: Be kind.\nassistant:"
    assert client.responses.input_tokens.count(model=MODEL, instructions="Be kind.").input_tokens > 0
    for method in (client.responses.create, client.responses.input_tokens.count):
        with pytest.raises(openai.BadRequestError, match="there is nothing to answer") as caught:
            method(model=MODEL)
        assert (caught.value.param, caught.value.code) == ("input", "missing_required_parameter")


def test_a_stream_is_continued_as_soon_as_it_has_ended(server: Running) -> None:
    client = server.openai()
    for _ in range(20):
        *_, last = client.responses.create(model=MODEL, input="hello", stream=True)
        ask(server, input="b", previous_response_id=last.response.id)


def test_the_answer_to_a_call_needs_only_the_response(serve: Serve) -> None:
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    server = serve(FakeModel(engine=FakeEngine(call), template=FakeTemplate("tools <tool_call>")))
    tools: Any = [{"type": "function", "name": "time"}]
    first = ask(server, tools=tools)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "noon"}
    ask(server, input=[output], previous_response_id=first.id, tools=tools)
    assert prompt_of(server).endswith("tool: noon\nassistant:")


def test_an_item_is_referred_to(server: Running) -> None:
    first = ask(server, max_output_tokens=1)
    ask(
        server, input=[{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "b"}]
    )
    assert prompt_of(server) == "assistant: a\nuser: b\nassistant:"


def test_what_is_kept_is_what_was_answered(server: Running) -> None:
    client = server.openai()
    made = ask(server, metadata={"a": "b"}, user="u", include=["message.output_text.logprobs"])
    assert client.responses.retrieve(made.id) == made
    streamed = list(client.responses.create(model=MODEL, input="hello", stream=True))[-1].response
    assert client.responses.retrieve(streamed.id).to_dict() == streamed.to_dict()


def test_it_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    with running_server(FakeModel(), store=path, api_key="k1") as server:
        first = ask(server, "k1", max_output_tokens=1)
        background = ask(server, "k1", background=True)
        whole = ended(server.openai(api_key="k1"), background.id)
    with running_server(FakeModel(), store=path, api_key="k2,k1") as server:
        client = server.openai(api_key="k1")
        assert client.responses.retrieve(first.id) == first
        assert client.responses.retrieve(background.id) == whole
        assert list(client.responses.retrieve(background.id, stream=True))[-1].response.id == background.id
        ask(server, "k1", input="b", previous_response_id=first.id)
        assert prompt_of(server) == "user: hello\nassistant: a\nuser: b\nassistant:"


def test_another_key_finds_nothing(serve: Serve) -> None:
    server = serve(api_key="k1,k2")
    own, other = server.openai(api_key="k1").responses, server.openai(api_key="k2").responses
    made = own.create(model=MODEL, input="hello")
    running = own.create(model=MODEL, input="hello", background=True)
    reference: Any = [{"type": "item_reference", "id": made.output[0].id}]
    for refused in (
        lambda: other.retrieve(made.id),
        lambda: other.retrieve(running.id),
        lambda: other.retrieve(running.id, stream=True),
        lambda: other.delete(made.id),
        lambda: other.cancel(running.id),
        lambda: other.input_items.list(made.id),
        lambda: other.create(model=MODEL, input="b", previous_response_id=made.id),
        lambda: other.input_tokens.count(model=MODEL, input="b", previous_response_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    with pytest.raises(openai.BadRequestError):
        other.create(model=MODEL, input=reference)
    assert own.retrieve(made.id) == made


def test_what_is_not_to_be_kept_is_not(serve: Serve, tmp_path: Path) -> None:
    server = serve(store=tmp_path / "store.sqlite3")
    made = ask(server, store=False, input="SECRET")
    assert made.store is False
    streamed = list(ask(server, store=False, input="SECRET", stream=True))[-1].response
    for response in (made, streamed):
        with pytest.raises(openai.NotFoundError):
            server.openai().responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            ask(server, previous_response_id=response.id)
    assert b"SECRET" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_deleting_deletes(serve: Serve, tmp_path: Path) -> None:
    server = serve(store=tmp_path / "store.sqlite3")
    client = server.openai()
    first = ask(server, input="SECRET", metadata={"a": "SECRET"}, max_output_tokens=1)
    second = ask(server, input="b", previous_response_id=first.id)

    def bytes_kept() -> bytes:
        return b"".join(path.read_bytes() for path in tmp_path.iterdir())

    assert b"SECRET" in bytes_kept()
    client.responses.delete(first.id)
    assert b"SECRET" not in bytes_kept()
    for refused in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            refused(first.id)
    assert client.responses.retrieve(second.id) == second
    with pytest.raises(openai.NotFoundError, match="which was deleted"):
        ask(server, input="c", previous_response_id=second.id)


def test_input_items_by_the_page(server: Running) -> None:
    client = server.openai()
    texts = [f"text {number}" for number in range(5)]
    made = ask(server, input=[{"role": "user", "content": text} for text in texts])

    def shown(**options: Any) -> list[str]:
        return [item.content[0].text for item in client.responses.input_items.list(made.id, **options)]

    assert shown(order="asc") == texts
    assert shown() == texts[::-1]
    assert shown(order="asc", limit=2) == texts  # the client asks for page after page
    page = client.responses.input_items.list(made.id, order="asc", limit=2)
    assert (page.has_more, page.last_id) == (True, page.data[-1].id)
    page = client.responses.input_items.list(made.id, order="asc", limit=2, after=page.data[-1].id)
    assert [item.content[0].text for item in page.data] == texts[2:4]
    for options in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "x"}, {"include": ["x"]}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(made.id, **options)
        assert caught.value.param == next(iter(options))


def test_in_the_background_nobody_waits(server: Running) -> None:
    client = server.openai()
    server.model.engine.go.clear()
    made = ask(server, background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    assert client.responses.retrieve(made.id).status == "queued"
    with pytest.raises(openai.BadRequestError, match="not ended"):
        ask(server, previous_response_id=made.id)
    server.model.engine.go.set()
    whole = ended(client, made.id)
    assert (whole.status, whole.output_text, whole.id) == ("completed", "a bé c€ d. ", made.id)
    assert whole.usage.output_tokens == 11
    ask(server, input="b", previous_response_id=made.id)


def test_a_stream_in_the_background_is_left_and_found_again(server: Running) -> None:
    client = server.openai()
    server.model.engine.go.clear()
    stream = ask(server, background=True, stream=True)
    seen = [next(stream), next(stream)]
    stream.close()
    assert [event.type for event in seen] == ["response.created", "response.queued"]
    made = seen[0].response
    again = client.responses.retrieve(made.id, stream=True, starting_after=0)
    assert next(iter(again)).type == "response.queued"
    server.model.engine.go.set()
    rest = list(again)
    assert [event.sequence_number for event in rest] == list(range(2, 2 + len(rest)))
    assert (rest[0].type, rest[-1].type) == ("response.in_progress", "response.completed")
    ended(client, made.id)
    late = list(client.responses.retrieve(made.id, stream=True))
    assert late[2:] == rest
    [last] = client.responses.retrieve(made.id, stream=True, starting_after=len(rest))
    assert last == rest[-1]
    with client.responses.stream(response_id=made.id) as helper:
        assert helper.get_final_response().output_text == "a bé c€ d. "


def test_stopped_in_the_background(server: Running) -> None:
    client = server.openai()
    server.model.engine.pause_s = 0.01
    server.model.engine.answer = "a" * 3000
    made = ask(server, background=True)
    stream = client.responses.retrieve(made.id, stream=True)
    next(event for event in stream if event.type == "response.output_text.delta")
    stopped = client.responses.cancel(made.id)
    assert stopped.status == "cancelled"
    assert stopped.output_text.startswith("a") and len(stopped.output_text) < 3000
    *_, last = stream
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert client.responses.retrieve(made.id) == stopped == client.responses.cancel(made.id)
    assert server.model.engine.cancelled == [made.id]


def test_forgotten_while_it_is_made(server: Running) -> None:
    client = server.openai()
    server.model.engine.pause_s = 0.01
    server.model.engine.answer = "a" * 3000
    made = ask(server, background=True)
    client.responses.delete(made.id)
    assert server.model.engine.cancelled_event.wait(10)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_what_waits_for_its_client_is_not_to_be_cancelled(server: Running) -> None:
    client = server.openai()
    made = ask(server)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.retrieve(made.id, stream=True)
    assert caught.value.param == "stream"
    for query in (
        "stream=maybe",
        "starting_after=1",
        "stream=true&starting_after=-1",
        "unknown=1",
        "include=x",
    ):
        assert server.http().get(f"/v1/responses/{made.id}?{query}").status_code == 400


def test_a_shutdown_ends_what_is_made(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    model = FakeModel(engine=FakeEngine("a" * 4000, pause_s=0.01))
    with running_server(model, store=path, shutdown_timeout=0) as server:
        made = ask(server, background=True)
    with running_server(FakeModel(), store=path) as server:
        kept = server.openai().responses.retrieve(made.id)
    assert (kept.status, kept.error.code) == ("failed", "server_error")
    assert "shut down" in kept.error.message


def test_a_killed_server_leaves_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.sqlite3"
    database = Database(path)
    body = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "background": True}
    item = {
        "type": "message",
        "role": "user",
        "id": "msg_1",
        "content": [{"type": "input_text", "text": "x"}],
    }
    Responses(database).add(
        "resp_1", "", "in_progress", None, json.dumps(body).encode(),
        [StoredItem("msg_1", json.dumps(item).encode())],
    )  # fmt: skip
    database.close()
    with running_server(FakeModel(), store=path) as server:
        client = server.openai()
        # It may be another server's that is alive.
        assert client.responses.retrieve("resp_1").status == "in_progress"
        monkeypatch.setattr(store, "STALE_S", 0.0)
        failed = client.responses.retrieve("resp_1")
        assert (failed.status, failed.error.message) == ("failed", INTERRUPTED)
        assert client.responses.cancel("resp_1").status == "failed"
        assert client.responses.input_items.list("resp_1").data[0].id == "msg_1"
        ask(server, input="y", previous_response_id="resp_1")
        assert prompt_of(server) == "user: x\nuser: y\nassistant:"


def test_a_store_that_fails_costs_the_keeping_alone(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise StoreError("the store failed: database or disk is full")

    monkeypatch.setattr(Responses, "add", full)
    for reply in (ask(server), list(ask(server, stream=True))[-1].response):
        assert (reply.status, reply.store) == ("completed", False)
        assert [warning["param"] for warning in reply.warnings] == ["store"]
    with pytest.raises(openai.InternalServerError) as caught:
        ask(server, background=True)
    assert caught.value.code == "store_error"


def test_background_work_counts_for_its_key(serve: Serve) -> None:
    server = serve(api_key="k1", key_max_concurrency=2)
    server.model.engine.go.clear()
    made = [ask(server, "k1", background=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError):
        ask(server, "k1", background=True)
    server.model.engine.go.set()
    for one in made:
        ended(server.openai(api_key="k1"), one.id)
    ask(server, "k1", background=True)


def test_where_nothing_can_be_kept_a_response_is_not_found(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = serve(store=tmp_path / "file" / "store.sqlite3")
    response = ask(server)
    assert [warning["param"] for warning in response.warnings] == ["store"]
    http = server.http()
    path = f"/v1/responses/{response.id}"
    replies = [
        http.get(path),
        http.get(path + "/input_items"),
        http.delete(path),
        http.post(path + "/cancel"),
    ]
    more = {"model": MODEL, "input": "b", "previous_response_id": response.id}
    replies.append(http.post("/v1/responses", json=more))
    reference = {"model": MODEL, "input": [{"type": "item_reference", "id": "msg_1"}]}
    codes = [(reply.status_code, reply.json()["error"]["code"]) for reply in replies]
    assert codes == [(404, "response_not_found")] * 5
    assert http.post("/v1/responses", json=reference).status_code in (400, 404)
