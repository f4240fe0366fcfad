"""Functions of SQL over HTTP: the server's own models answer them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from in_process import Running, server_of

from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions

pytest.importorskip("duckdb", reason="needs headrace[data]")

SQL = "SELECT id, ai('Answer:', body, max_tokens := 2) AS a FROM mails ORDER BY id"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("ai")
    lines = [f"{number},list all files of user {number % 5}" for number in range(40)]
    (folder / "mails.csv").write_text("\n".join(["id,body", *lines]))
    models = [load_model(name, EngineOptions(max_model_len=512)) for name in ("mini", "embed")]
    settings = {
        "datasets": {"mails": {"from": f"file:{folder}/mails.csv"}},
        "sql": {"ai_rows": 20, "parallel": 4},
        "store": str(folder / "store.sqlite3"),
    }
    with server_of(*models, **settings) as running:
        yield running
    for model in models:
        model.close()


def test_answers_and_what_they_took(server: Running) -> None:
    http = server.http()
    first = http.post("/v1/sql", json={"sql": SQL})
    assert first.status_code == 200, first.text
    usage = json.loads(first.headers["x-headrace-ai"])
    assert (usage["rows"], usage["computed"], usage["failed"]) == (5, 5, 0)
    assert usage["prompt_tokens"] > 0
    rows = first.json()
    said = server.openai().chat.completions.create(
        model="mini",
        messages=[{"role": "user", "content": "Answer:\n\nlist all files of user 3"}],
        max_tokens=2,
        temperature=0,
    )
    assert rows[3]["a"] == str(said.choices[0].message.content).strip()
    again = http.post("/v1/sql", json={"sql": SQL}, headers={"accept": "text/csv"})
    assert json.loads(again.headers["x-headrace-ai"])["computed"] == 0
    assert "ended at max_tokens" in again.headers["x-headrace-warnings"]
    assert "x-headrace-ai" not in http.post("/v1/sql", json={"sql": "SELECT 1 AS x"}).headers


def test_encoders_of_the_server(server: Running) -> None:
    columns = "similarity(body, 'list files') AS s, classify(body, ['files', 'music']) AS c"
    sql = f"SELECT {columns} FROM mails LIMIT 1"
    [row] = server.http().post("/v1/sql", json={"sql": sql}).json()
    assert row["c"] == "files"
    vectors = server.openai().embeddings.create(
        model="embed", input=["list all files of user 0", "list files"]
    )
    first, second = (one.embedding for one in vectors.data)
    assert row["s"] == pytest.approx(sum(a * b for a, b in zip(first, second, strict=True)), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (
            {"sql": "SELECT ai('x', id, max_tokens := 2) FROM mails"},
            400,
            "40 different rows.*sql.ai_rows allows 20",
        ),
        (
            {"sql": "SELECT ai('y', body, max_tokens := 2) FROM mails", "max_ai_rows": 4},
            400,
            "max_ai_rows allows 4",
        ),
        (
            {"sql": "SELECT ai('z', body, max_tokens := 2) FROM mails", "max_tokens": 9},
            400,
            "max_tokens allows 9",
        ),
        ({"sql": "SELECT ai('x', model := 'nosuch')"}, 404, "nosuch"),
        ({"sql": "SELECT ai('x', model := 'embed')"}, 400, "cannot generate text"),
        ({"sql": "SELECT embed('x', 'mini')"}, 400, "cannot embed texts"),
        ({"sql": "SELECT ai('x', wrong := 1)"}, 400, "no option 'wrong'"),
    ],
)
def test_refusals(server: Running, body: dict[str, object], status: int, words: str) -> None:
    reply = server.http().post("/v1/sql", json=body)
    assert reply.status_code == status, reply.text
    assert re.search(words, reply.json()["error"]["message"]), reply.text


def test_a_client_that_leaves_and_others_beside(server: Running) -> None:
    """A statement that is given up leaves room, and chats go on while one computes."""
    long = {"sql": "SELECT ai('Tell a long story:', body, max_tokens := 300) AS a FROM mails"}
    with pytest.raises(httpx.ReadTimeout):
        server.http().post("/v1/sql", json=long, timeout=httpx.Timeout(20, read=0.05))
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(server.http().post, "/v1/sql", json=long | {"max_rows": 50}, timeout=60)
        said = server.openai().chat.completions.create(
            model="mini", messages=[{"role": "user", "content": "list all files"}], max_tokens=4
        )
        assert said.choices[0].message.content
        assert running.result().status_code == 200
