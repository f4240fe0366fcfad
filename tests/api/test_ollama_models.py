"""Which models there are and what they are called, asked by Ollama's own client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest
from fake import FakeModel
from in_process import Running, running_server

import headrace
import headrace.api.ollama.pull
from headrace.errors import ModelNotFound
from headrace.loading.loader import LoadedModel, load_model
from headrace.loading.options import EngineOptions
from headrace.weights.hub.bundled import list_bundled
from tiny import tiny_model

MODEL = "fake/model"
COMMIT = "c" * 40
SHIPPED = sorted(list_bundled())
OTHERS = [name for name in SHIPPED if name != "novelette"]
HELLO: Any = [{"role": "user", "content": "hello"}]

Serve = Callable[..., Running]


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds org/name."""
    folder = tmp_path / "hub"
    repository = folder / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    tiny_model(repository / "snapshots", "qwen3").rename(repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def own(serve: Serve, tmp_path: Path) -> Running:
    """A server of the fake model with a store of its own."""
    return serve(FakeModel(), store=str(tmp_path / "store.sqlite3"))


@pytest.fixture(scope="module")
def real() -> Iterator[Running]:
    """A server of the model that ships."""
    loaded: LoadedModel = load_model("novelette", EngineOptions(max_num_seqs=4))
    with running_server(loaded) as server:
        yield server
    loaded.close()


def refused(status: int, ask: Callable[[], object]) -> str:
    with pytest.raises(ollama.ResponseError) as caught:
        ask()
    assert caught.value.status_code == status
    return caught.value.error


def names(server: Running) -> list[str]:
    return [model.model for model in server.ollama().list().models]


def test_a_sign_of_life(server: Running) -> None:
    http = server.http()
    for path in ("/", "/api/version", "/api/tags"):
        assert http.head(path).status_code == http.get(path).status_code == 200
    assert "Headrace" in http.get("/").text
    assert http.get("/api/version").json() == {"version": headrace.__version__}


def test_tags_list_what_is_here(real: Running) -> None:
    models = {model.model: model for model in real.ollama().list().models}
    assert list(models) == ["novelette", *OTHERS, "org/name"]
    shipped, cached = models["novelette"], models["org/name"]
    assert shipped.details.family == "llama" and shipped.details.quantization_level == "BF16"
    assert shipped.details.parameter_size.endswith("M")
    assert (cached.details.format, cached.details.family) == ("safetensors", "qwen3")
    assert shipped.size > 10**6 and shipped.modified_at.year >= 2024 and len(shipped.digest) >= 32


def test_show_tells_what_a_model_is(real: Running) -> None:
    client = real.ollama()
    shown = client.show("novelette")
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == real.model.context_length
    assert shown.modelinfo["general.parameter_count"] > 10**6
    assert shown.capabilities == ["completion"] and shown.license
    assert "messages" in shown.template
    assert client.show("org/name:latest").details.family == "qwen3"
    assert ", ".join(["novelette", *OTHERS, "org/name"]) in refused(404, lambda: client.show("./novelette"))
    refused(404, lambda: client.show("/etc"))


def test_what_show_ignores_it_says(real: Running) -> None:
    body = real.http().post("/api/show", json={"model": "novelette", "verbose": True}).json()
    assert [warning["param"] for warning in body["warnings"]] == ["verbose"]
    assert "warnings" not in real.http().post("/api/show", json={"model": "novelette"}).json()


def test_capabilities_are_those_of_the_template(real: Running, hub: Path) -> None:
    template = hub / "models--org--name" / "snapshots" / COMMIT / "chat_template.jinja"
    template.write_text("{{ messages }}{{ tools }}<tool_call><think></think>")
    assert real.ollama().show("org/name").capabilities == ["completion", "tools", "thinking"]


def test_ps_lists_what_is_in_memory(real: Running) -> None:
    [running] = real.ollama().ps().models
    assert running.model == "novelette"
    assert running.size >= 10**6 and running.size_vram == 0
    assert running.context_length == real.model.context_length
    assert running.expires_at.year == 9999


def test_the_real_engine_answers_and_continues(real: Running) -> None:
    client = real.ollama()
    ask = {"model": "novelette", "prompt": "The old house stood", "options": {"seed": 3, "num_predict": 12}}
    whole = client.generate(**ask)
    streamed = list(client.generate(**ask, stream=True))
    assert whole.response and "".join(part.response for part in streamed) == whole.response
    assert whole.context == streamed[-1].context
    assert whole.prompt_eval_duration > 0 and whole.eval_duration > 0
    more = client.generate(
        model="novelette", prompt=" and", context=whole.context, options={"num_predict": 2}
    )
    assert list(more.context[: len(whole.context)]) == list(whole.context)
    assert real.model.tokenizer.bos_id not in more.context[1:]
    found = client.chat(model="novelette", messages=HELLO, format={"enum": ["yes", "no"]})
    assert found.message.content in ('"yes"', '"no"')
    wrong = lambda: client.generate(model="novelette", prompt="x", format={"type": "nonsense"})  # noqa: E731
    assert "format" in refused(400, wrong)


def test_an_alias_has_a_system_prompt_and_options(own: Running) -> None:
    client = own.ollama()
    made = client.create("brief", from_=MODEL, system="Be brief.", parameters={"num_predict": 2, "top_k": 3})
    assert made.status == "success"
    assert [part.status for part in client.create("again", from_="brief", license="mine", stream=True)] == [
        "success"
    ]
    assert client.chat(model="brief", messages=HELLO).message.content == "a "
    client.generate(model="again:latest", prompt="hello", options={"num_predict": 1})
    client.chat(model="brief", messages=[{"role": "system", "content": "Be long."}, *HELLO])
    first, second, third = own.model.engine.submitted
    assert bytes(first.prompt) == bytes(second.prompt) == b"system: Be brief.\nuser: hello\nassistant:"
    assert bytes(third.prompt) == b"system: Be long.\nuser: hello\nassistant:"
    assert (first.params.top_k, second.params.top_k, second.params.max_tokens) == (3, 3, 1)
    assert names(own) == [MODEL, *SHIPPED, "org/name", "again", "brief"]


def test_aliases_outlive_the_server(tmp_path: Path) -> None:
    store = str(tmp_path / "store.sqlite3")
    with running_server(FakeModel(), store=store) as server:
        server.ollama().copy(MODEL, "other")
    with running_server(FakeModel(), store=store) as server:
        shown = server.ollama().list().models[-1]
        assert (shown.model, shown.details.parent_model) == ("other", MODEL)
        options = {"num_predict": 1}
        assert server.ollama().generate(model="other", prompt="x", options=options).response == "a"


def test_openais_and_anthropics_clients_know_aliases(tmp_path: Path) -> None:
    store = str(tmp_path / "store.sqlite3")
    with running_server(FakeModel(), store=store) as server:
        server.ollama().copy(MODEL, "other")
        server.ollama().create("spoken", from_=MODEL, system="S")
    with running_server(FakeModel(), store=store) as server:
        http = server.http()
        listed = [card["id"] for card in http.get("/v1/models").json()["data"]]
        assert listed == [MODEL, "other", "spoken"]
        assert http.get("/v1/models/other").json()["id"] == "other"
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        chat = http.post("/v1/chat/completions", json=body | {"model": "other"})
        assert chat.status_code == 200 and "warnings" not in chat.json()
        assert http.post("/v1/messages", json=body | {"model": "other"}).status_code == 200
        assert http.post("/tokenize", json={"model": "other", "content": "a"}).status_code == 200
        spoken = http.post("/v1/chat/completions", json=body | {"model": "spoken"}).json()
        assert [warning["param"] for warning in spoken["warnings"]] == ["model"]
        server.ollama().delete("other")
        assert http.post("/v1/chat/completions", json=body | {"model": "other"}).status_code == 404


def test_what_an_alias_is_shows(own: Running) -> None:
    client = own.ollama()
    client.create("mine", from_="novelette", system="S", parameters={"temperature": 0.5}, license=["L", "M"])
    shown = client.show("mine")
    assert (shown.parameters, shown.license) == ("temperature 0.5", "L\n\nM")
    assert shown.modelfile == "FROM novelette\n"
    assert own.http().post("/api/show", json={"model": "mine"}).json()["system"] == "S"


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"from": "nothing"}, 404, "there is no model 'nothing'"),
        ({"from": MODEL, "parameters": {"temprature": 1}}, 400, "did you mean 'temperature'"),
        ({"from": MODEL, "quantize": "q4_K_M"}, 400, "headrace quantize"),
        ({"from": MODEL, "template": "{{ .Prompt }}"}, 400, "a creation names a model"),
        ({"files": {"a": "sha256:0"}}, 400, "from"),
        ({"from": MODEL, "license": 3}, 400, "license"),
        ({"from": MODEL, "model": "novelette"}, 400, "the name of a model"),
        ({"from": MODEL, "model": "a b"}, 400, "is no name"),
        ({"from": MODEL, "model": "../x"}, 400, "is no name"),
    ],
)
def test_creations_that_are_refused(own: Running, more: dict[str, Any], status: int, said: str) -> None:
    reply = own.http().post("/api/create", json={"model": "new", **more})
    assert reply.status_code == status
    assert said in reply.json()["error"]
    assert names(own) == [MODEL, *SHIPPED, "org/name"]


def test_deleting(own: Running, hub: Path) -> None:
    client = own.ollama()
    client.copy("org/name", "other")
    assert client.delete("other").status == "success"
    assert "other" not in names(own) and "org/name" in names(own)
    assert client.delete("org/name").status == "success"
    assert not (hub / "models--org--name").exists()
    refused(404, lambda: client.delete("org/name"))
    refused(404, lambda: client.copy("org/name", "x"))
    assert "ships inside the package" in refused(400, lambda: client.delete("novelette"))
    assert "is being served" in refused(400, lambda: client.delete(MODEL))


def test_pull_reports_progress(own: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    half, rest = threading.Event(), threading.Event()

    def pull(name: str, progress: Callable[[int, int], None]) -> Path:
        progress(5, 10)
        half.set()
        rest.wait(10)
        return Path()

    monkeypatch.setattr(headrace.api.ollama.pull, "pull", pull)
    monkeypatch.setattr(headrace.api.ollama.pull, "REPORT_S", 0.01)
    lines = []
    for line in own.ollama().pull("big/model", stream=True):
        lines.append(line)
        if line.completed:
            rest.set()
    assert lines[-1].status == "success"
    assert (lines[-2].completed, lines[-2].total, lines[-2].digest) == (5, 10, "big/model")
    assert own.ollama().pull("big/model").status == "success"
    assert own.ollama().pull("novelette").status == "success"  # it is here


def test_a_pull_that_fails(own: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str, progress: Callable[[int, int], None]) -> Path:
        if name == "broken/model":
            raise ZeroDivisionError("a defect")
        raise ModelNotFound(f"the hub has no model {name!r}")

    monkeypatch.setattr(headrace.api.ollama.pull, "pull", pull)
    client = own.ollama()
    assert "the hub has no model 'no/model'" in refused(404, lambda: client.pull("no/model"))
    with pytest.raises(ollama.ResponseError, match="has no model"):
        list(client.pull("no/model", stream=True))
    assert "log" in refused(500, lambda: client.pull("broken/model"))
    assert "no hub model" in refused(400, lambda: client.pull("./folder"))
    refused(404, lambda: client.pull("a..b/c"))
    assert "insecure" in refused(400, lambda: client.pull("no/model", insecure=True))


def test_two_who_pull_the_same_model_share_it_and_more_than_four_wait(
    own: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []
    begun, rest = threading.Semaphore(0), threading.Event()

    def pull(name: str, progress: Callable[[int, int], None]) -> Path:
        pulled.append(name)
        begun.release()
        rest.wait(10)
        return Path()

    monkeypatch.setattr(headrace.api.ollama.pull, "pull", pull)
    streams = [own.ollama().pull(f"big/{n}", stream=True) for n in (0, 0, 1, 2, 3)]
    for stream in streams:
        next(stream)
    for _ in range(4):
        assert begun.acquire(timeout=10)
    reply = own.http().post("/api/pull", json={"model": "big/4"})
    assert reply.status_code == 503 and reply.headers["retry-after"]
    rest.set()
    assert [[line.status for line in stream][-1] for stream in streams] == ["success"] * 5
    assert sorted(pulled) == ["big/0", "big/1", "big/2", "big/3"]


def test_an_offline_server_pulls_nothing(serve: Serve) -> None:
    client = serve(offline=True).ollama()
    assert "offline" in refused(400, lambda: client.pull("big/model"))
    assert client.pull("org/name").status == "success"


def test_what_is_not_built_says_so(own: Running) -> None:
    client = own.ollama()
    assert "no embeddings" in refused(400, lambda: client.embed(MODEL, ["a"]))
    assert "no embeddings" in refused(400, lambda: client.embeddings(MODEL, "a"))
    refused(404, lambda: client.embed("nothing", "a"))
    assert "publishes nothing" in refused(400, lambda: client.push(MODEL))
