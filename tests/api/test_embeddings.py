"""Embeddings over HTTP, with the official clients, of a tiny encoder."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from fake import FakeModel
from in_process import Running, running_server

from headrace.engine.client import LoadedModel
from headrace.inference.keywords import embedding_request, new_call
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.tasks.embed import pooled
from tiny import tiny_model

NAME = "bert"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    folder = tiny_model(tmp_path_factory.mktemp("encoder"), "encoders/bert")
    loaded = load_model(str(folder), EngineOptions(threads=1))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def server(model: LoadedModel) -> Iterator[Running]:
    with running_server(model, offline=True) as running:
        yield running


@pytest.fixture(scope="module")
def decoder() -> Iterator[Running]:
    with running_server(FakeModel(), offline=True) as running:
        yield running


def expected(model: LoadedModel, *texts: str, dimensions: int | None = None) -> np.ndarray:
    async def vectors() -> list[np.ndarray]:
        with ModelThreads(1) as threads:
            source = OneModel(model)
            runner = ModelRunner(LocalHandler(source, threads), source, threads)
            return await runner.rows(embedding_request(texts, dimensions), new_call())

    return pooled(asyncio.run(vectors()), 0)


def refused(server: Running, **more: Any) -> dict[str, Any]:
    reply = server.http().post("/v1/embeddings", json={"model": NAME, "input": "abc", **more})
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def test_openais_client(server: Running, model: LoadedModel) -> None:
    client = server.openai()
    whole = client.embeddings.create(model=NAME, input=["abc", "hello", "abc"])
    assert whole.model_dump()["id"].startswith("embd-")  # Mistral's client needs it
    assert [entry.index for entry in whole.data] == [0, 1, 2]
    assert np.array_equal(
        np.array([entry.embedding for entry in whole.data], np.float32),
        expected(model, "abc", "hello", "abc"),
    )
    assert (whole.model, whole.object, whole.data[0].object) == (NAME, "list", "embedding")
    assert whole.usage.prompt_tokens == whole.usage.total_tokens == 4 + 6 + 4
    one = client.embeddings.create(model=NAME, input="abc", dimensions=5, encoding_format="float")
    assert np.allclose(one.data[0].embedding, expected(model, "abc", dimensions=5)[0])


def test_token_ids_and_base64(server: Running, model: LoadedModel) -> None:
    ids = model.tokenizer.encode_prompt("abc")
    post = server.http().post
    for given in (ids, [ids], "abc"):
        reply = post(
            "/v1/embeddings", json={"model": NAME, "input": given, "encoding_format": "base64"}
        ).json()
        [entry] = reply["data"]
        vector = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        assert np.array_equal(vector, expected(model, "abc")[0])
    assert "warnings" not in reply
    reply = post("/v1/embeddings", json={"input": "abc", "user": "me"}).json()
    assert [warning["param"] for warning in reply["warnings"]] == ["user"]


def test_texts_in_objects_and_beside_ids(server: Running) -> None:
    parts = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]}
    given = ["abc", {"prompt_string": "abc"}, parts, [97, 98]]
    vectors = [one.embedding for one in server.openai().embeddings.create(model=NAME, input=given).data]  # type: ignore[arg-type]
    assert vectors[0] == vectors[1] == vectors[2] != vectors[3]


def test_many_inputs(server: Running, model: LoadedModel) -> None:
    texts = [f"{number}" for number in range(2048)]
    reply = server.openai().embeddings.create(model=NAME, input=texts)
    assert [entry.index for entry in reply.data] == list(range(2048))
    assert np.array_equal(np.array(reply.data[2047].embedding, np.float32), expected(model, "2047")[0])
    error = refused(server, input=[*texts, "x"])
    assert error["param"] == "input" and "2,049 texts, at most 2,048" in error["message"]


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"input": "x" * 64}, "input", "the text has 65 tokens, the limit is 64"),
        ({"input": "x" * 100_000}, "input", "100,000 characters"),
        ({"input": []}, "input", "none may be empty"),
        ({"input": [[]]}, "input", "none may be empty"),
        ({"input": 7}, "input", "a text, token ids"),
        ({"input": ["a", None]}, "input", "a text, token ids"),
        ({"input": [1, ["a"]]}, "input", "must be integers"),
        ({"input": {"content": "abc"}}, "input", "has an object"),
        ({"input": {"content": [{"type": "image_url", "image_url": {}}]}}, "input", "is no text"),
        ({"input": [True]}, "input", "must be integers"),
        ({"input": [128]}, "input", "token 128 is not in the vocabulary"),
        ({"dimensions": 33}, "dimensions", "ask for 1 to 32"),
        ({"dimensions": 0}, "dimensions", "an integer >= 1, not 0"),
        ({"encoding_format": "hex"}, "encoding_format", "not 'hex'"),
        ({"inputs": "abc"}, "inputs", "unknown parameter"),
    ],
)
def test_refused(server: Running, more: dict[str, Any], param: str, message: str) -> None:
    error = refused(server, **more)
    assert error["param"] == param and message in error["message"], error


def test_a_decoder_says_who_can(decoder: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="fake/model generates text and makes no embeddings"):
        decoder.openai().embeddings.create(model="fake/model", input="abc")


def test_an_encoder_generates_nothing(server: Running) -> None:
    client = server.openai()
    with pytest.raises(openai.BadRequestError, match="cannot generate text, it can embed texts"):
        client.completions.create(model=NAME, prompt="abc")
    with pytest.raises(openai.BadRequestError, match="cannot generate text, it can embed texts"):
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "a"}])


def test_texts_among_token_ids(server: Running, model: LoadedModel) -> None:
    """As llama.cpp reads them: a text at the beginning gets special tokens, later ones get none."""
    plain = list(model.tokenizer.encode("abc", add_special=False))
    marked = list(model.tokenizer.encode("abc"))
    http = server.http()

    def vectors(value: Any) -> list[list[float]]:
        reply = http.post("/v1/embeddings", json={"model": NAME, "input": value})
        assert reply.status_code == 200, reply.text
        return [entry["embedding"] for entry in reply.json()["data"]]

    assert vectors([5, "abc", 6]) == vectors([5, *plain, 6])
    assert vectors(["abc", [5, "abc"], ["abc", 5]]) == vectors(["abc", [5, *plain], [*marked, 5]])
    for wrong in ([5, "abc", -1], [5, "abc", None], ["abc", ["abc"]]):
        assert refused(server, input=wrong)["param"] == "input"
    assert "1,048,577 characters" in refused(server, input=[5, "x" * (2**20 + 1)])["message"]


def test_a_vector_of_each_token_is_llama_cpps_only(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "encoders/bert")
    loaded = load_model(str(folder), EngineOptions(threads=1, pooling="none"))
    try:
        with running_server(loaded, offline=True) as running:
            http = running.http()
            for path in ("/embedding", "/embeddings"):
                [found] = http.post(path, json={"input": "abc"}).json()
                assert found["index"] == 0 and len(found["embedding"]) == len(loaded.tokenizer.encode("abc"))
            asked = (("/v1/embeddings", "input"), ("/api/embed", "input"), ("/api/embeddings", "prompt"))
            for path, name in asked:
                reply = http.post(path, json={"model": loaded.name, name: "abc"})
                assert reply.status_code == 400 and "a vector for each token" in reply.text, path
    finally:
        loaded.close()


def test_metrics_count_them(server: Running) -> None:
    server.openai().embeddings.create(model=NAME, input=["abc", "d"])
    text = server.http().get("/metrics").text
    counted = [line for line in text.splitlines() if line.startswith("headrace_prompt_tokens_total")]
    assert counted and float(counted[0].rpartition(" ")[2]) >= 6


def test_ollamas_client(server: Running, model: LoadedModel) -> None:
    client = server.ollama()
    reply = client.embed(NAME, ["abc", "hello"])
    assert np.array_equal(np.array(reply.embeddings, np.float32), expected(model, "abc", "hello"))
    assert reply.prompt_eval_count == 10 and reply.total_duration > 0
    assert np.allclose(
        client.embed(NAME, "abc", dimensions=4).embeddings, expected(model, "abc", dimensions=4)
    )
    assert np.array_equal(
        np.array(client.embeddings(NAME, "abc").embedding, np.float32), expected(model, "abc")[0]
    )
    assert client.embed(NAME, []).embeddings == client.embeddings(NAME, "").embedding == []


def test_what_ollama_shows(server: Running) -> None:
    shown = server.ollama().show(NAME)
    assert shown.capabilities == ["embedding"] and shown.modelinfo["bert.embedding_length"] == 32


def test_ollamas_truncate_is_asked_for_and_told(server: Running, model: LoadedModel) -> None:
    client, long = server.ollama(), "x" * 70
    for more in ({}, {"truncate": False}):
        with pytest.raises(ollama.ResponseError, match="text 1 has 71 tokens, the limit is 64"):
            client.embed(NAME, ["abc", long], **more)
    body = {"model": NAME, "input": ["abc", long], "truncate": True, "options": {"temperature": 0}}
    reply = server.http().post("/api/embed", json=body).json()
    assert np.array_equal(np.array(reply["embeddings"][1], np.float32), expected(model, "x" * 63)[0])
    told = {warning["param"]: warning["message"] for warning in reply["warnings"]}
    assert "text 1 has 71 tokens and was cut to the model's 64" in told["truncate"]
    assert "options.temperature" in told


def test_ollamas_decoder_says_who_can(decoder: Running) -> None:
    with pytest.raises(ollama.ResponseError, match="no embeddings") as caught:
        decoder.ollama().embed("fake/model", "abc")
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="neither a text nor a list of texts"):
        decoder.ollama()._request_raw("POST", "/api/embed", json={"model": "fake/model", "input": [1]})


def test_the_document_names_the_body(server: Running) -> None:
    document = server.http().get("/openapi.json").json()
    body = document["paths"]["/v1/embeddings"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"input", "encoding_format", "dimensions"} <= set(body["properties"])
    assert "EmbeddingList" in json.dumps(document["paths"]["/v1/embeddings"]["post"]["responses"]["200"])


def test_a_second_model_that_can_is_named(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path, "llama3")
    loaded = load_model(str(folder), EngineOptions(threads=1))
    try:
        with running_server(loaded, offline=True) as running, pytest.raises(openai.BadRequestError) as caught:
            running.openai().embeddings.create(model="llama3", input="abc")
        assert "no loaded model can" in str(caught.value)
    finally:
        loaded.close()


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_ollama_keeps_the_model_as_long_as_the_body_says(server: Running, path: str) -> None:
    text = {"input": "abc"} if path == "/api/embed" else {"prompt": "abc"}
    reply = server.http().post(path, json={"model": NAME, "keep_alive": "5m", **text})
    assert reply.status_code == 200, reply.text
    assert server.server.config.app.state.service.models.default.keep_alive_s == 300
