"""What a key may do: scopes in each dialect, aliases of their owners, urgency of a key."""

from __future__ import annotations

from pathlib import Path

import anthropic
import httpx
import ollama
import openai
import pytest
from fake import FakeModel
from in_process import Running

from headrace.api.http.api_keys import required_scope
from headrace.errors import StoreBusy
from headrace.storage.aliases import Aliases
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits, Keys

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
ADMIN = [
    ("POST", "/v1/models/fake/model/load"),
    ("POST", "/v1/models/fake/model/unload"),
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
]


def client(server: Running, key: str, **headers: str) -> httpx.Client:
    return server.http(headers={"authorization": f"Bearer {key}", **headers})


@pytest.fixture
def keyed(serve) -> Running:
    return serve(api_key="user", admin_api_key="boss")


@pytest.mark.parametrize(("method", "path"), ADMIN)
def test_administration_needs_its_scope(keyed: Running, method: str, path: str) -> None:
    refused = client(keyed, "user").request(method, path, json={})
    assert refused.status_code == 403
    message = refused.json()["error"]
    text = message if path.startswith("/api/") else message["message"]
    assert "scope" in text and "headrace keys add" in text
    assert client(keyed, "boss").request(method, path, json={}).status_code != 403
    assert client(keyed, "nobody").request(method, path, json={}).status_code == 401


def test_without_keys_everybody_is_an_administrator(serve) -> None:
    http = serve().http()
    assert http.post("/v1/models/fake/model/load").status_code == 200
    assert http.post("/api/copy", json={"source": "fake/model", "destination": "mine"}).status_code == 200
    reply = http.post(CHAT, json=BODY | {"priority": -100})
    assert (reply.status_code, reply.json().get("warnings")) == (200, None)


def test_inference_is_open_to_every_key_and_closed_to_none_of_its_scopes(keyed: Running) -> None:
    for key in ("user", "boss"):
        http = client(keyed, key)
        assert http.post(CHAT, json=BODY).status_code == 200
        assert http.get("/v1/models").status_code == 200


def test_the_refusal_has_the_form_of_its_dialect(serve, tmp_path: Path) -> None:
    server = serve(store=tmp_path / "store.sqlite3")
    keys = Keys(Database(tmp_path / "store.sqlite3"))
    key = keys.add("renamer", KeyLimits(), frozenset({"alias"}))
    with pytest.raises(openai.PermissionDeniedError) as refused:
        server.openai(api_key=key).chat.completions.create(model="fake/model", **BODY)
    body = refused.value.body
    assert isinstance(body, dict)
    assert (body["type"], body["code"], body["param"]) == ("permission_error", "missing_scope", None)
    with pytest.raises(anthropic.PermissionDeniedError) as refused:
        server.anthropic(api_key=key).messages.create(model="fake/model", **BODY)
    assert refused.value.body["error"]["type"] == "permission_error"
    with pytest.raises(ollama.ResponseError) as refused:
        server.ollama(headers={"authorization": f"Bearer {key}"}).chat("fake/model", BODY["messages"])
    assert refused.value.status_code == 403 and "'infer'" in refused.value.error
    assert server.ollama(headers={"authorization": f"Bearer {key}"}).copy("fake/model", "mine")


def test_aliases_belong_to_the_key_that_made_them(serve, tmp_path: Path) -> None:
    server = serve(store=tmp_path / "store.sqlite3", admin_api_key="boss")
    database = Database(tmp_path / "store.sqlite3")
    keys = Keys(database)
    one = client(server, keys.add("one", KeyLimits(), frozenset({"infer", "alias"})))
    two = client(server, keys.add("two", KeyLimits(), frozenset({"infer", "alias"})))
    copy = {"source": "fake/model", "destination": "mine"}
    create = {"model": "mine", "from": "fake/model", "system": "obey"}
    assert one.post("/api/copy", json=copy).status_code == 200
    for refused in (
        two.post("/api/copy", json=copy),
        two.post("/api/create", json=create),
        two.request("DELETE", "/api/delete", json={"model": "mine"}),
    ):
        assert refused.status_code == 403 and "another key" in refused.json()["error"]
    assert one.post("/api/create", json=create | {"system": "mine"}).status_code == 200
    alias = Aliases(database).find("mine")
    assert alias is not None and alias.system == "mine"
    assert client(server, "boss").post("/api/create", json=create).status_code == 200
    assert one.request("DELETE", "/api/delete", json={"model": "mine"}).status_code == 403
    assert client(server, "boss").request("DELETE", "/api/delete", json={"model": "mine"}).status_code == 200


def test_a_key_with_aliases_deletes_no_model(serve, tmp_path: Path) -> None:
    server = serve(store=tmp_path / "store.sqlite3")
    keys = Keys(Database(tmp_path / "store.sqlite3"))
    http = client(server, keys.add("one", KeyLimits(), frozenset({"alias"})))
    refused = http.request("DELETE", "/api/delete", json={"model": "fake/model"})
    assert refused.status_code == 403 and "'admin'" in refused.json()["error"]


def test_unloading_by_keep_alive_is_administration(keyed: Running) -> None:
    body = {"model": "fake/model", "keep_alive": 0}
    refused = client(keyed, "user").post("/api/generate", json=body)
    assert refused.status_code == 403
    body = {"model": "fake/model", "prompt": "x", "keep_alive": 0, "stream": False}
    reply = client(keyed, "user").post("/api/generate", json=body).json()
    assert [warning["param"] for warning in reply["warnings"]] == ["keep_alive"]


def test_urgency_is_bounded_by_the_key(serve, tmp_path: Path) -> None:
    model = FakeModel()
    server = serve(model, store=tmp_path / "store.sqlite3", api_key="user", admin_api_key="boss")
    keys = Keys(Database(tmp_path / "store.sqlite3"))
    keyed = {
        "user": 0,
        "boss": -100,
        keys.add("gold", KeyLimits(priority=-10)): -10,
        keys.add("last", KeyLimits(priority=5)): 5,
    }
    for key, priority in keyed.items():
        reply = client(server, key).post(CHAT, json=BODY | {"priority": -100})
        assert reply.status_code == 200
        assert model.engine.submitted[-1].priority == priority
        warned = [warning["param"] for warning in reply.json().get("warnings") or []]
        assert warned == ([] if priority == -100 else ["priority"])
    assert client(server, "user").post(CHAT, json=BODY | {"priority": 7}).status_code == 200
    assert model.engine.submitted[-1].priority == 7
    accounts = {request.account for request in model.engine.submitted}
    assert len(accounts) == 4 and "" not in accounts


def test_a_server_is_closed_until_the_keys_were_read(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(tmp_path / "store.sqlite3")
    key = Keys(database).add("alice", KeyLimits())
    database.close()

    def busy(keys: Keys) -> int:
        raise StoreBusy("the store is busy: try again in a moment")

    server = serve(store=tmp_path / "store.sqlite3")
    with monkeypatch.context() as patched:
        patched.setattr(Keys, "version", busy)
        for _ in range(3):  # also within the second in which the keys are not read again
            refused = server.http().post(CHAT, json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_busy")
            assert "retry-after" in refused.headers
        assert server.http().get("/health").status_code == 200
    assert server.http().post(CHAT, json=BODY).status_code == 401
    assert client(server, key).post(CHAT, json=BODY).status_code == 200


def test_every_route_that_changes_something_is_in_the_table() -> None:
    assert required_scope("GET", "/v1/files/x") is None
    assert required_scope("POST", "/v1/models/a/b/unload") == "admin"
    assert required_scope("POST", "/v1/anything/new") == "infer"
    assert required_scope("PATCH", "/v1/models/a") == "infer"


@pytest.mark.parametrize("end", ["%0A", "%0D", "%0a%0a", "%09", "%7F", "%C2%85"])
def test_a_path_with_control_characters_reaches_no_endpoint(serve, end: str) -> None:
    server = serve(api_key="ordinary")
    http = server.http(headers={"authorization": "Bearer ordinary"})
    refused = http.post(f"/v1/models/tiny/unload{end}", json={})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_path"
