"""Indexes in Qdrant against races, kills between any two requests, and servers that lie."""

from __future__ import annotations

import itertools
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from index_rows import by_words, check_whole, row
from index_stores import QdrantStores, Store

pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")

from qdrant_client import models

from headrace.errors import HeadraceError, StoreError
from headrace.search.index import Index, IndexBusy, IndexDamaged, IndexMissing, IndexQuery
from headrace.search.qdrant import rows, writing
from headrace.search.qdrant.records import CHUNKS, META_ID, PREFIX, one_of
from headrace.search.where import read_where

API_KEY = "k3y of qdrant"


@pytest.fixture
def remote(qdrant: QdrantStores, tmp_path: Path) -> Iterator[Store]:
    found = qdrant.store(tmp_path / "indexes")
    yield found
    found.close()


def set_meta(remote: Store, **fields: Any) -> None:
    remote.qdrant.client.set_payload(PREFIX + "i", fields, points=[META_ID])


def before(remote: Store, wanted: Callable[[str, str], bool], work: Callable[[], object]) -> None:
    """Have `work` done once, just before the first request that is wanted."""

    def answer(method: str, path: str, handler: Any) -> bool:
        if wanted(method, path):
            remote.qdrant.answer = lambda *_: False
            work()
        return False

    remote.qdrant.answer = answer


def stored(remote: Store) -> str:
    """Everything that the server has."""
    client = remote.qdrant.client
    names = [one.name for one in client.get_collections().collections]
    return repr([client.scroll(name, limit=1000)[0] for name in names])


def test_numbers_of_writes_that_a_server_makes_up(remote: Store) -> None:
    """They take no memory here."""
    index = remote.new()
    index.upsert([row("a", "red apples")])
    set_meta(remote, attempt=2**31 - 2)
    assert index.upsert([row("b", "blue plums")]) == 2
    check_whole(index, [("a", ["red apples"]), ("b", ["blue plums"])])


def test_more_writes_that_never_were_than_are_remembered(remote: Store) -> None:
    """What the first of them has left is seen by nobody, although nobody could delete it for long."""
    index: Any = remote.new()
    index.upsert([row("a", "red apples"), row("b", "blue plums")])
    with index._pool.use("i") as client:
        with writing.writing(client, "i") as write:
            totals = rows.totals_of(write)
            rows.remove_keys(write, totals, ["a"])
            rows.add_rows(write, totals, [row("never", "red pears")])
        set_meta(remote, attempt=write.number + 100)
        index.upsert([row("c", "green pears")])
        check_whole(index, [("a", ["red apples"]), ("b", ["blue plums"]), ("c", ["green pears"])])


def test_a_late_writer_while_points_are_deleted(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it takes for removed is not deleted."""
    monkeypatch.setattr(writing, "LEASE_S", 0.3)
    index: Any = remote.new()
    index.upsert([row("a", "red apples"), row("b", "blue plums")])
    with index._pool.use("i") as client, pytest.raises(IndexBusy), writing.writing(client, "i") as late:
        late._beaten_s = 1e18
        index.delete(["b"])
        keep = [one_of("key_digest", rows.digest_of_key("a"))]
        chosen = models.Filter(must=[one_of("gone", 2**53), *keep])

        def remove() -> None:
            remote.qdrant.client.set_payload(PREFIX + "i", {"gone": late.number}, points=chosen)

        index.upsert([row("b", "blue plums"), row("c", "x")])
        index.upsert([row("c", "y")])
        deletes = itertools.count()
        before(remote, lambda _, path: path.endswith("/delete") and next(deletes) == 1, remove)
        assert index.maintain(force=True)
        late.commit()
    check_whole(index, [("a", ["red apples"]), ("b", ["blue plums"]), ("c", ["y"])])


def test_another_write_before_one_is_known_to_be_done(remote: Store) -> None:
    index, other = remote.new(), remote.other()
    index.upsert([row("a", "red apples")])
    seen: list[int] = []

    def answer(method: str, path: str, handler: Any) -> bool:
        # After the change that makes the write count: the next request asks what has become of it.
        if remote.qdrant.client.retrieve(PREFIX + "i", [META_ID])[0].payload["commit"] == 2:
            remote.qdrant.answer = lambda *_: False
            set_meta(remote, commit=3, attempt=3, generation=3)
            seen.append(1)
        return False

    remote.qdrant.answer = answer
    assert index.upsert([row("b", "blue plums")]) == 2
    assert seen
    check_whole(other, [("a", ["red apples"]), ("b", ["blue plums"])])


def test_a_deletion_that_is_killed_at_any_request(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is there until nothing of it is: who deletes it again deletes all."""
    monkeypatch.setattr(writing, "LEASE_S", 0.2)
    number = 0
    for number in itertools.count():
        index = remote.new()
        index.upsert([row("a", "red apples")])
        state = itertools.count()

        def answer(method: str, path: str, handler: Any, state: Any = state, most: int = number) -> bool:
            if next(state) < most:
                return False
            handler._reply(500, {"status": {"error": "killed"}})
            return True

        remote.qdrant.answer = answer
        try:
            remote.reopened().delete("i")
        except HeadraceError:
            pass
        else:
            break
        remote.qdrant.answer = lambda *_: False
        if "i" in remote.indexes.names():
            remote.indexes.delete("i")
        assert "apples" not in stored(remote), number
    assert number > 5


def test_a_new_index_while_another_of_its_name_is_deleted(remote: Store) -> None:
    index = remote.new()
    index.upsert([row("a", "red apples")])
    other, seen = remote.reopened(), list[Index]()

    def answer(method: str, path: str, handler: Any) -> bool:
        client = remote.qdrant.client
        if not seen and not client.collection_exists(PREFIX + "i"):
            seen.append(index)
            client.create_collection(CHUNKS + "i_1", {})  # of the first write of the new index
        return False

    remote.qdrant.answer = answer
    other.delete("i")
    with pytest.raises(IndexMissing):
        remote.indexes.find("i")
    assert seen
    assert remote.qdrant.client.collection_exists(CHUNKS + "i_1")


def test_first_writes_that_fail_leave_nothing(remote: Store) -> None:
    """Passages of the first write that counts are the only ones on the server."""
    index = remote.new()
    state = itertools.count()

    def answer(method: str, path: str, handler: Any) -> bool:
        if method == "PUT" and path.endswith("/points") and CHUNKS in path and next(state) < 3:
            handler._reply(500, {"status": {"error": "disk full"}})
            return True
        return False

    remote.qdrant.answer = answer
    for _ in range(3):
        with pytest.raises(StoreError, match="disk full"):
            index.upsert([row("a", "red apples")])
    index.upsert([row("a", "red apples")])
    names = [one.name for one in remote.qdrant.client.get_collections().collections]
    assert len([name for name in names if name.startswith(CHUNKS)]) == 1


def test_what_is_deleted_is_not_kept(remote: Store) -> None:
    index = remote.new()
    index.upsert([row("a", "red apples"), row("b", *(f"plum {place}" for place in range(20)))])
    index.upsert([row("none", title="secret")])
    assert index.delete(["a", "none"]) == 2
    assert "apples" not in stored(remote)
    assert "none" not in stored(remote)
    assert index.delete(["a"]) == 0
    check_whole(index, [("b", [f"plum {place}" for place in range(20)])])


def test_a_query_while_points_are_deleted(remote: Store) -> None:
    """Before any of its requests: it finds what one generation has."""
    index = remote.new()
    index.upsert([row("a", "red apples", v=1), row("b", "red plums", v=2)])
    number = 0
    for number in itertools.count():
        index.upsert([row("c", "red pears", v=3)])
        state = itertools.count()

        seen = list[int]()

        def answer(
            method: str, path: str, handler: Any, state: Any = state, at: int = number, seen: Any = seen
        ) -> bool:
            if next(state) == at:
                seen.append(1)
                client = remote.qdrant.client
                meta = client.retrieve(PREFIX + "i", [META_ID])[0].payload
                done = meta["commit"]
                chosen = models.Filter(must=[one_of("key_digest", rows.digest_of_key("c"))])
                client.delete(PREFIX + "i", models.FilterSelector(filter=chosen))
                text = models.Filter(must=[one_of("text", "red pears")])
                client.delete(meta["within"], models.FilterSelector(filter=text))
                gone = {"documents": 2, "chunks": 2, "words": 4, "generation": meta["generation"] + 1}
                fields = {"commit": done + 2, "attempt": done + 2, "swept": done + 1, **gone}
                client.set_payload(PREFIX + "i", fields, points=[META_ID])
            return False

        remote.qdrant.answer = answer
        found = index.query(IndexQuery(text="red", where=read_where("v > 0 AND v < 9")))
        remote.qdrant.answer = lambda *_: False
        keys = sorted(hit.key for hit in found.hits)
        if not seen:
            break
        assert keys in (["a", "b"], ["a", "b", "c"]), number
        assert len({hit.bm25_score for hit in found.hits}) == 1
    assert number > 5


def test_pages_that_never_end(remote: Store) -> None:
    index = remote.new()
    index.upsert([row("a", "red apples")])
    numbers = itertools.count(5)

    def pages(points: bool) -> Any:
        def answer(method: str, path: str, handler: Any) -> bool:
            if not path.endswith("/scroll"):
                return False
            one = next(numbers)
            assert one < 1000
            payload = {"key": f"k{one}", "digest": "00"}
            found = [{"id": one, "payload": payload}] if points else []
            result = {"points": found, "next_page_offset": one + 1}
            handler._reply(200, {"result": result, "status": "ok", "time": 0.0})
            return True

        return answer

    for points in (False, True):
        remote.qdrant.answer = pages(points)
        with pytest.raises((StoreError, IndexDamaged)):
            index.digests()


def test_payloads_of_another_kind(remote: Store) -> None:
    """Each is a typed error that names the index."""
    index = remote.new()
    index.upsert([row("a", "red apples", v="x" * 60)])
    number = remote.qdrant.client.scroll(PREFIX + "i", models.Filter(must=[one_of("key", "a")]))[0][0].id
    long = read_where(f"v < '{'x' * 61}'")
    for fields, work in (
        ({"digest": "zz"}, index.digests),
        ({"attributes": "5"}, index.documents),
        ({"attributes": "{"}, index.documents),
        ({"attributes": "[1]"}, index.attributes),
        ({"attributes": "5"}, lambda: index.query(IndexQuery(text="red"))),
        ({"attributes": "5"}, lambda: index.query(IndexQuery(text="red", where=long))),
    ):
        old = remote.qdrant.client.retrieve(PREFIX + "i", [number])[0].payload
        remote.qdrant.client.set_payload(PREFIX + "i", fields, points=[number])
        with pytest.raises(IndexDamaged, match="the index i"):
            work()
        remote.qdrant.client.set_payload(PREFIX + "i", old, points=[number])
    for details in ("5", "{", "\ud800"):
        set_meta(remote, details=details)
        with pytest.raises(IndexDamaged, match="the index i"):
            index.meta()


def test_what_a_server_says_is_printed_as_it_is(remote: Store) -> None:
    """No control characters, and never the API key that it was sent."""
    index = remote.new()
    said = f"no \x1b[31m room for api-key {API_KEY}"

    def answer(method: str, path: str, handler: Any) -> bool:
        body = b'{"status": {"error": "' + said.encode() + b'"}}'
        handler.send_response(500)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    remote.qdrant.answer = answer
    with pytest.raises(StoreError, match="room for") as caught:
        by_words(index, "x")
    assert "\x1b" not in caught.value.message
    assert API_KEY not in "".join(traceback.format_exception(caught.value))
    assert json.dumps(caught.value.message)
