"""Indexes in Qdrant: names and keys, servers that are down or misbehave, other writers, odd conditions."""

from __future__ import annotations

import itertools
import json
import random
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from index_rows import by_vector, by_words, check_whole, row
from index_stores import QdrantStores, Store, free_port

pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")

from qdrant_client import models

from headrace.config.extras import ExtraMissing
from headrace.config.search_settings import IndexStore, IndexStores, read_search
from headrace.errors import HeadraceError, InvalidRequest, StoreError, UsageError
from headrace.search.index import (
    IndexBusy,
    IndexDamaged,
    IndexMeta,
    IndexMissing,
    IndexQuery,
    IndexUnreachable,
)
from headrace.search.indexes import Indexes
from headrace.search.qdrant import pool, words, writing
from headrace.search.where import read_where

META = IndexMeta(model="m", chunk_tokens=64)


@pytest.fixture
def remote(qdrant: QdrantStores, tmp_path: Path) -> Iterator[Store]:
    found = qdrant.store(tmp_path / "indexes")
    yield found
    found.close()


def said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_names_and_owners(remote: Store) -> None:
    remote.new("a_1").upsert([row("k", "one")])
    remote.new("a").upsert([row("k", "two")])
    remote.new("other", owner="key:x")
    remote.new("ask-folder")  # always on this machine
    assert remote.indexes.names() == ["a", "a_1", "ask-folder"]
    assert remote.indexes.names("key:x") == ["other"]
    with pytest.raises(IndexMissing, match="no index 'other'"):
        remote.indexes.find("other")
    gone = remote.other("a")
    remote.indexes.delete("a")
    remote.indexes.delete("a")
    assert remote.indexes.names() == ["a_1", "ask-folder"]
    assert by_words(remote.other("a_1"), "one") == [("k", "one")]
    with pytest.raises(IndexDamaged, match="the index a has no collection"):
        gone.query(IndexQuery(text="x"))


def test_a_wrong_key_and_a_server_that_is_down(remote: Store, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("secret-of-another")
    for store in (
        IndexStore(store=remote.address, secret=f"file:{wrong}"),
        IndexStore(store=remote.address),
    ):
        with pytest.raises(IndexUnreachable, match="refuses the API key") as caught:
            Indexes(tmp_path, IndexStores(store)).find("docs")
        assert "secret-of-another" not in said(caught.value)
        assert "127.0.0.1" not in caught.value.message
    nobody = IndexStore(store=f"qdrant://127.0.0.1:{free_port()}")
    down = Indexes(remote.folder, IndexStores(IndexStore(), {"far": nobody}))
    with pytest.raises(IndexUnreachable, match="the index far does not answer") as caught:
        down.find("far")
    assert caught.value.status == 503
    down.find_or_make("here", META)
    assert down.find("here").name == "here"


def test_a_server_that_misbehaves(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    index = remote.new()
    index.upsert([row("a", "red apples")])
    monkeypatch.setattr(pool, "MAX_REPLY", 100_000)

    def reply(status: int, body: bytes, **headers: str) -> Any:
        def answer(method: str, path: str, handler: Any) -> bool:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.send_header("content-length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return True

        return answer

    def points(*payloads: dict[str, Any]) -> bytes:
        found = [{"id": 0, "payload": one} for one in payloads]
        return json.dumps({"result": found, "status": "ok", "time": 0.0}).encode()

    for answer, kind, match in (
        (reply(200, b"x" * 200_000), StoreError, "more than 100,000 bytes"),
        (reply(200, b"<html>"), StoreError, "not of Qdrant"),
        (reply(200, b"[" * 90_000), StoreError, "not of Qdrant"),
        (reply(200, b'{"result": 5}'), StoreError, "not of Qdrant"),
        (reply(200, b"{}"), StoreError, "not of Qdrant"),
        (reply(200, b"x", content_encoding="gzip"), StoreError, "compressed by 'gzip'"),
        (reply(307, b"", location="http://127.0.0.1:1/"), StoreError, r"redirects \(307\)"),
        (reply(500, b'{"status": {"error": "disk\\nfull"}}'), StoreError, "failed .500."),
        (reply(503, b""), IndexUnreachable, "503"),
        (reply(200, points({"format": 2})), IndexDamaged, "has format 2"),
        (reply(200, points({"format": 1, "made": 7})), IndexDamaged, "has not written"),
        (reply(200, points()), IndexDamaged, "has no collection"),
    ):
        remote.qdrant.answer = answer
        with pytest.raises(kind, match=match):
            index.query(IndexQuery(text="apples"))
    remote.qdrant.answer = lambda *_: False
    assert by_words(index, "apples") == [("a", "red apples")]


def test_a_reply_that_never_ends(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    index = remote.new()
    monkeypatch.setattr(pool, "READ_TIMEOUT_S", 0.2)

    def drip(method: str, path: str, handler: Any) -> bool:
        handler.send_response(200)
        handler.send_header("content-length", "100000")
        handler.end_headers()
        for _ in range(100_000):  # until the client has gone
            handler.wfile.write(b" ")
            handler.wfile.flush()
        return True

    remote.qdrant.answer = drip
    pages = iter(range(10**9))
    with pytest.raises((IndexUnreachable, StoreError)):
        index.query(IndexQuery(text="apples"))

    def endless(method: str, path: str, handler: Any) -> bool:
        if not path.endswith("/scroll"):
            return False
        next(pages)
        handler._reply(200, {"result": {"points": [], "next_page_offset": 7}, "status": "ok", "time": 0.0})
        return True

    remote.qdrant.answer = endless
    with pytest.raises(StoreError, match="without an end"):
        index.digests()
    assert next(pages) < 5


def test_versions(qdrant: QdrantStores, tmp_path: Path) -> None:
    for version in ("1.9.7", "0.11", "of mine"):
        qdrant.server.version = version
        store = qdrant.store(tmp_path)
        with pytest.raises(StoreError, match=r"1\.10 or later"):
            store.new()
        store.close()


def test_what_is_another_program_s(remote: Store) -> None:
    client = remote.qdrant.client
    client.create_collection("headrace_index_theirs", {})
    client.upsert("headrace_index_theirs", [models.PointStruct(id=0, vector={}, payload={"x": 1})])
    client.create_collection("headrace_index_a b", {})
    assert remote.indexes.names() == []
    with pytest.raises(IndexMissing):
        remote.indexes.find("theirs")
    with pytest.raises(StoreError, match="is no index of Headrace"):
        remote.new("theirs")
    remote.indexes.delete("theirs")
    assert client.count("headrace_index_theirs").count == 1
    index = remote.new()
    index.upsert([row("a", "red apples")])
    [chunks] = [
        one.name for one in client.get_collections().collections if one.name.startswith("headrace_chunks_i_")
    ]
    stray = {"text": "red apples", "terms": [words._key("appl")], "tf": {words._key("appl"): 1}, "words": 2}
    vector = {"words": models.SparseVector(indices=[1], values=[9.0]), "dense": [1.0] * 24}
    client.upsert(chunks, [models.PointStruct(id="5c56c793-69f3-4fbf-87e6-c4bf54c28c26", vector=vector)])
    client.upsert(chunks, [models.PointStruct(id=7, vector=vector, payload=stray)])
    check_whole(index, [("a", ["red apples"])])  # points that no write of ours has made are not seen
    born = {**stray, "born": 1, "gone": 2**53, "document": "x"}
    client.upsert(chunks, [models.PointStruct(id=9, vector=vector, payload=born)])
    with pytest.raises(IndexDamaged):
        by_vector(index, "red apples")


def test_a_half_made_index_is_made(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.search.qdrant.qdrant_index.LEASE_S", 0.3)
    remote.qdrant.client.create_collection("headrace_index_i", {})
    index = remote.new()
    assert index.upsert([row("a", "x")]) == 1
    with pytest.raises(IndexBusy, match="just made"):
        remote.reopened()._at("i").make(META)  # type: ignore[union-attr]


def test_one_writer_and_late_ones(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is taken for dead changes nothing with what it still sends."""
    monkeypatch.setattr(writing, "LEASE_S", 0.3)
    index: Any = remote.new()
    index.upsert([row("a", "red apples"), row("b", "blue plums")])
    from headrace.search.qdrant import rows
    from headrace.search.qdrant.records import PREFIX, one_of

    with index._pool.use("i") as client:
        with pytest.raises(IndexBusy, match="being written"), writing.writing(client, "i") as late:
            late._beaten_s = 1e18  # it does not ask whether it still has the lock
            totals = rows.totals_of(late)
            rows.remove_keys(late, totals, ["a"])
            index.delete(["b"])  # after the lease
            rows.remove_keys(late, totals, ["b"])
            rows.add_rows(late, totals, [row("late", "red apples again")])
            late.commit(generation=99)
        # What it had removed is there, and what it had added is not.
        check_whole(index, [("a", ["red apples"])])
        index.upsert([row("c", "green pears")])
        late.remove(PREFIX + "i", [one_of("key_digest", rows.digest_of_key("c"))])
        check_whole(index, [("a", ["red apples"]), ("c", ["green pears"])])
        index.delete(["a"])
        check_whole(index, [("c", ["green pears"])])
        assert index.version().dead == 0
        check_whole(index, [("c", ["green pears"])])
        assert client.count(PREFIX + "i").count == 2  # the meta and one document


def test_a_write_that_fails_at_any_request(remote: Store) -> None:
    index = remote.new()
    before = [("a", ["red apples", "x"]), ("b", ["blue plums"])]
    index.upsert([row(key, *texts) for key, texts in before])
    after = [("a", ["yellow lemons"]), ("b", ["blue plums"]), ("c", ["green pears"])]
    seen = list[bool]()
    for number in itertools.count():
        index.delete([])  # what the last try has left behind is gone
        remote.qdrant.answer = broken_after(number)
        try:
            index.upsert([row("a", "yellow lemons"), row("c", "green pears")])
        except HeadraceError:
            remote.qdrant.answer = lambda *_: False
        else:
            break
        is_done = "c" in index.digests()
        seen.append(is_done)
        if number % 3 == 0 or is_done:
            check_whole(index, after if is_done else before)
        if is_done:
            index.upsert([row("a", "red apples", "x")])
            index.delete(["c"])
    assert len(seen) > 8
    assert sorted(seen) == seen
    assert seen[-2:] == [False, True]  # the last request only asks what has become of the change


def broken_after(requests: int) -> Any:
    """A server whose disk is full after so many requests."""
    state = itertools.count()

    def answer(method: str, path: str, handler: Any) -> bool:
        if next(state) < requests:
            return False
        handler._reply(500, {"status": {"error": "disk full"}})
        return True

    return answer


def test_long_texts_are_compared_to_their_ends(remote: Store, tmp_path: Path) -> None:
    draw, local = random.Random(2), Store(tmp_path / "local").new()
    begin = "the same beginning of more than forty-eight bytes é "
    values = [
        begin + "".join(draw.choice("ab \x01é") for _ in range(draw.randrange(4))) for _ in range(20)
    ] + [begin[:47], begin[:48], begin[:49], "", "z", "\x01", "é" * 24, "é" * 23 + "e"]
    rows = [row(f"k{place:02}", "text", v=value) for place, value in enumerate(values)]
    index = remote.new()
    for one in (index, local):
        one.upsert(rows)
    for value in draw.sample(values, 9):
        for sign in ("<", "<=", ">", ">=", "=", "!="):
            quoted = value.replace("'", "''")
            query = IndexQuery(text="text", where=read_where(f"v {sign} '{quoted}'"), limit=50)
            assert index.query(query) == local.query(query), (value, sign)


def test_numbers_are_compared_exactly(remote: Store, tmp_path: Path) -> None:
    local, index = Store(tmp_path / "local").new(), remote.new()
    values = [0, -0.0, 1, 1.0, 1.5, -1.5, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2.0**63, 1e308, 5e-324]
    values += [-1, 10**30, True, "1"]
    rows = [row(f"k{place:02}", "text", v=value) for place, value in enumerate(values)]
    for one in (index, local):
        one.upsert(rows)
    for value in (
        "0",
        "1",
        "1.5",
        "-1.5",
        "9007199254740993",
        "9223372036854775807",
        "1e308",
        "5e-324",
        "'1'",
    ):
        for sign in ("<", ">=", "=", "!="):
            query = IndexQuery(text="text", where=read_where(f"v {sign} {value}"), limit=50)
            assert index.query(query) == local.query(query), (value, sign)


def test_more_matches_than_are_fetched(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    index = remote.new()
    index.upsert([row(f"k{place:03}", "refund") for place in range(200)])
    assert len(by_words(index, "refund", 3)) == 3
    monkeypatch.setattr(words, "MAX_MATCHES", 100)
    with pytest.raises(InvalidRequest, match="more than 100 passages"):
        by_words(index, "refund", 3)


def test_lengths_that_have_changed(remote: Store, tmp_path: Path) -> None:
    """The mean length of passages is another one than when the index was begun."""
    draw, local, index = random.Random(3), Store(tmp_path / "local").new(), remote.new()
    for length in (2, 40, 1):
        rows = [
            row(
                f"{length}-{place}", " ".join(draw.choice(("pay", "late", "red", "x")) for _ in range(length))
            )
            for place in range(60)
        ]
        for one in (index, local):
            one.upsert(rows)
        query = IndexQuery(text="pay late", limit=3)
        assert index.query(query) == local.query(query)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"pip install 'headrace\[qdrant\]'"):
        Indexes(tmp_path, read_search({"store": "qdrants://h"}))


def test_settings() -> None:
    for address in ("qdrant://h", "qdrants://h:1/p", "https://h:6333", "http://[::1]:6333"):
        assert read_search({"store": address}).everything.kind == "qdrant"
    for wrong, match in (
        ({"store": "qdrant://u:s3cret@h"}, "has a password in it"),
        ({"store": "qdrant://s3cret@h"}, "has a password in it"),
        ({"store": "qdrant://h?api_key=s3cret"}, "more than an address"),
        ({"store": "qdrant:///"}, "is no address"),
        ({"store": "qdrant://h:0"}, "is no address"),
        ({"store": "qdrant://h:99999"}, "is no address"),
    ):
        with pytest.raises(UsageError, match=match) as caught:
            read_search(wrong)
        assert "s3cret" not in said(caught.value)
