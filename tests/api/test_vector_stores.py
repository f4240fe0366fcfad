"""OpenAI's vector stores, by its official client."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from in_process import Running, server_of
from index_stores import STORES
from scripted import ScriptedModel

from encoder_models import load_encoders

FRUIT = b"# Lemons\n\nLemons are sour and yellow.\n\n# Plums\n\nPlums are sweet and blue."
KEYS = {"api_key": "one,two"}


@pytest.fixture(scope="module", params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(kind)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, kind: str, folder: Path) -> Iterator[Running]:
    with ExitStack() as held:
        more: dict[str, Any] = {}
        if kind != "local":
            server = request.getfixturevalue(kind)
            held.callback(server.store(folder).close)
            more = {"search": server.settings()}
        models = load_encoders(folder / "models", held, "embedder")
        yield held.enter_context(server_of(*models, store=folder / "store.sqlite3", **KEYS, **more))


@pytest.fixture(scope="module")
def client(served: Running) -> openai.OpenAI:
    return served.openai(api_key="one")


def upload(client: openai.OpenAI, name: str, data: bytes) -> str:
    return client.files.create(file=(name, io.BytesIO(data)), purpose="assistants").id


def test_a_store_from_its_first_file_to_its_end(client: openai.OpenAI, folder: Path, kind: str) -> None:
    lemons = upload(client, "fruit.md", FRUIT)
    store = client.vector_stores.create(name="Fruit", file_ids=[lemons], metadata={"a": "b"})
    assert (store.name, store.status, store.metadata) == ("Fruit", "completed", {"a": "b"})
    assert (store.file_counts.completed, store.file_counts.total) == (1, 1)
    assert any((folder / "search").glob("*/index.sqlite")) == (kind == "local")
    hit = client.vector_stores.search(store.id, query="sour lemons").data[0]
    assert (hit.file_id, hit.filename) == (lemons, "fruit.md")
    assert "Lemons are sour" in " ".join(hit.content[0].text.split())
    assert 0 < hit.score < 1

    other = upload(client, "apples.txt", b"Apples are red.")
    added = client.vector_stores.files.create_and_poll(
        vector_store_id=store.id, file_id=other, attributes={"color": "red", "price": 3}
    )
    assert (added.status, added.attributes) == ("completed", {"color": "red", "price": 3})
    filters: Any = {"type": "and", "filters": [{"type": "eq", "key": "color", "value": "red"}]}
    found = client.vector_stores.search(store.id, query="fruit", filters=filters).data
    assert [one.file_id for one in found] == [other]
    assert {one.id for one in client.vector_stores.files.list(store.id)} == {lemons, other}
    content = client.vector_stores.files.content(other, vector_store_id=store.id)
    assert [part.text for part in content] == ["Apples are red."]

    assert client.vector_stores.files.delete(other, vector_store_id=store.id).deleted
    kept = [one.read_bytes() for one in (folder / "search").rglob("index.sqlite*")]
    assert not any(b"pples are red" in one or b"ppl" in one for one in kept)
    assert client.vector_stores.search(store.id, query="apples", filters=filters).data == []
    changed = client.vector_stores.update(store.id, name="Fruits")
    assert (changed.name, changed.metadata) == ("Fruits", {"a": "b"})
    assert store.id in [one.id for one in client.vector_stores.list(limit=100)]
    assert client.vector_stores.delete(store.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(store.id)
    assert client.files.retrieve(lemons).filename == "fruit.md"


def test_batches_and_files_that_fail(client: openai.OpenAI) -> None:
    store = client.vector_stores.create(name="x")
    good, bad = upload(client, "a.txt", b"Some words."), upload(client, "b.txt", b"ab\xff")
    batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=[good, bad])
    assert batch.status == "completed"
    assert (batch.file_counts.completed, batch.file_counts.failed) == (1, 1)
    files = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id)
    states = {one.id: one for one in files}
    assert states[good].status == "completed"
    assert states[bad].status == "failed"
    assert states[bad].last_error is not None
    assert "no text in UTF-8" in states[bad].last_error.message
    assert [one.file_id for one in client.vector_stores.search(store.id, query="words").data] == [good]
    assert client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id).status == "completed"


def test_every_key_sees_its_own(served: Running, client: openai.OpenAI) -> None:
    store = client.vector_stores.create(name="mine", file_ids=[upload(client, "a.txt", b"secret words")])
    other = served.openai(api_key="two")
    assert store.id not in [one.id for one in other.vector_stores.list(limit=100)]
    for call in (
        lambda: other.vector_stores.retrieve(store.id),
        lambda: other.vector_stores.search(store.id, query="secret"),
        lambda: other.vector_stores.delete(store.id),
        lambda: other.vector_stores.files.list(store.id),
        lambda: other.vector_stores.retrieve("../x"),
        lambda: client.vector_stores.files.create(store.id, file_id="file-none"),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    reply = served.http(headers={"authorization": "Bearer two"}).post("/v1/search", json={"text": "secret"})
    assert reply.status_code == 404
    named = {"text": "secret", "datasets": [store.id]}
    for key in ("one", "two"):
        http = served.http(headers={"authorization": f"Bearer {key}"})
        assert http.post("/v1/search", json=named).status_code == 404


def test_pages_of_stores(client: openai.OpenAI) -> None:
    made = [client.vector_stores.create(name=f"page {number}").id for number in range(3)]
    listed = [one.id for one in client.vector_stores.list(limit=1) if one.id in made]
    assert sorted(listed) == sorted(made)


def test_several_queries_are_one_search(client: openai.OpenAI) -> None:
    files = [upload(client, "sour.txt", b"Lemons are sour."), upload(client, "red.txt", b"Apples are red.")]
    store = client.vector_stores.create(file_ids=files)
    texts = ["sour lemons", "red apples", "sour lemons"]
    found = client.vector_stores.search(store.id, query=texts, max_num_results=2)
    assert found.model_extra is not None and found.model_extra["search_query"] == texts
    assert sorted(one.file_id for one in found.data) == sorted(files)
    alone = [one for text in texts[:2] for one in client.vector_stores.search(store.id, query=text).data]
    best = {name: max(one.score for one in alone if one.file_id == name) for name in files}
    assert {one.file_id: one.score for one in found.data} == best
    for wrong in ([], ["x"] * 17, ["x", " "]):
        with pytest.raises(openai.BadRequestError):
            client.vector_stores.search(store.id, query=wrong)


def test_wrong_filters_and_sizes(client: openai.OpenAI) -> None:
    store = client.vector_stores.create()
    wrong: Any = {"type": "like", "key": "a", "value": "b"}
    with pytest.raises(openai.BadRequestError, match="filters cannot be read"):
        client.vector_stores.search(store.id, query="x", filters=wrong)
    with pytest.raises(openai.BadRequestError, match="max_num_results"):
        client.vector_stores.search(store.id, query="x", max_num_results=51)
    assert client.vector_stores.search(store.id, query="x").data == []


def test_a_response_searches_the_stores_that_it_names(
    served: Running, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp", reason="needs headrace[tools]")
    lemons = upload(client, "fruit.md", FRUIT)
    store = client.vector_stores.create(name="Fruit", file_ids=[lemons])
    other = client.vector_stores.create(file_ids=[upload(client, "apples.txt", b"Lemons on an apple tree")])
    model = ScriptedModel(lambda request: said.pop(0))
    service = served.server.config.app.state.service  # type: ignore[union-attr]
    monkeypatch.setattr(service, "handler", model)
    said: list[Any] = [[("file_search", {"query": "sour lemons"})], "Lemons are sour."]
    tool: Any = {"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 1}
    reply = client.responses.create(input="What is sour?", tools=[tool])
    assert reply.output_text == "Lemons are sour."
    [call] = [one for one in reply.output if one.type == "file_search_call"]
    assert (call.queries, call.status) == (["sour lemons"], "completed")
    [found] = call.results or []
    assert (found.file_id, found.filename) == (lemons, "fruit.md")
    assert "emons" in (found.text or "") and 0 < (found.score or 0) <= 1
    read = model.requests[1].messages[-1]  # what the model was given
    said += ["Yes."]
    client.responses.create(input="Sure?", previous_response_id=reply.id, tools=[tool])
    assert next(one for one in model.requests[-1].messages if one.role == "tool").content == read.content
    said += ["Yes."]
    given: Any = [item.to_dict() for item in reply.output]
    client.responses.create(input=[*given, {"role": "user", "content": "Sure?"}], tools=[tool])
    assert next(one for one in model.requests[-1].messages if one.role == "tool").content == read.content
    said += [[("file_search", {"query": "sour lemons"})], "Lemons are sour."]
    with client.responses.stream(model="m", input="What is sour?", tools=[tool]) as stream:
        events = list(stream)
    kinds = [event.type for event in events if "file_search" in event.type]
    steps = ("in_progress", "searching", "completed")
    assert kinds == [f"response.file_search_call.{step}" for step in steps]
    text = "As fruit.md says, " + " ".join((found.text or "").split()[:9]) + "."
    said += [[("file_search", {"query": "sour lemons"})], text]
    with client.responses.stream(model="m", input="What is sour?", tools=[tool]) as stream:
        events = list(stream)
    added = [event for event in events if event.type == "response.output_text.annotation.added"]
    [message] = [one for one in events[-1].response.output if one.type == "message"]  # type: ignore[union-attr]
    assert [one.annotation.to_dict() for one in added] == [
        one.to_dict() for one in message.content[0].annotations
    ]
    assert [one.annotation_index for one in added] == list(range(len(added)))
    assert {(one.annotation.type, one.annotation.file_id) for one in added} == {("file_citation", lemons)}
    assert added[0].annotation.filename == "fruit.md"
    assert added[0].annotation.index == text.index("fruit.md") + len("fruit.md")
    assert [spec.name for spec in model.requests[0].tools.callable] == ["file_search"]  # type: ignore[union-attr]
    for wrong, words in (
        ({"filters": {"type": "no"}}, "filters"),
        ({"vector_store_ids": []}, "vector_store_ids"),
        ({"nothing": 1}, "nothing"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            client.responses.create(input="x", tools=[tool | wrong])
    with pytest.raises(openai.BadRequestError, match="one file_search"):
        client.responses.create(input="x", tools=[tool, tool | {"vector_store_ids": [other.id]}])
    stranger = served.openai(api_key="two")
    with pytest.raises(openai.NotFoundError, match="no vector store"):
        stranger.responses.create(input="x", tools=[tool])
