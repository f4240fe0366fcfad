"""Indexes in PostgreSQL: names and owners, passwords, a database that is down, other writers, settings."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from index_rows import by_words, row
from index_stores import PASSWORD, Server, Store, connect, free_port

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

META = IndexMeta(model="m", chunk_tokens=64)


@pytest.fixture
def remote(pgvector: Server, tmp_path: Path) -> Iterator[Store]:
    found = pgvector.store(tmp_path / "indexes")
    yield found
    found.close()


def said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_names_and_owners(remote: Store) -> None:
    mine = IndexStores(
        IndexStore(), {"far": IndexStore(store=remote.address, secret=f"file:{remote.secret}")}
    )
    some = Indexes(remote.folder, mine)
    some.find_or_make("ask-folder", META)
    assert not Indexes(remote.folder).may_have_any
    some.find_or_make("near", META)
    assert Indexes(remote.folder).may_have_any
    some.find_or_make("far", META)
    remote.new("other", owner="key:x")
    remote.new("ask-folder")  # always on this machine
    assert remote.indexes.may_have_any
    remote.new("near")
    assert some.names() == ["ask-folder", "far", "near"]
    assert remote.indexes.names() == ["ask-folder", "far", "near"]
    assert remote.indexes.names("key:x") == ["other"]
    assert sorted(path.name for path in remote.folder.iterdir()) == ["ask-folder", "near"]
    with pytest.raises(IndexMissing, match="did you mean 'far'"):
        some.find("fur")
    with pytest.raises(IndexMissing, match="no index 'other'"):
        remote.indexes.find("other")
    with pytest.raises(InvalidRequest, match="at most 48"):
        remote.indexes.find("n" * 49)
    with pytest.raises(InvalidRequest, match="made by the model m"):
        some.find_or_make("far", IndexMeta(model="n", chunk_tokens=64))
    gone = some.find("far")
    some.delete("far")
    some.delete("far")
    assert some.names() == ["ask-folder", "near"]
    with pytest.raises(IndexDamaged, match="the index far has no tables"):
        gone.query(IndexQuery(text="x"))
    assert len(some.find_all(None)) == 1
    some.close()


def test_a_password_is_in_no_message(remote: Store, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("secret-of-another")
    for secret, what in (
        (wrong, "refuses the user or the password"),
        (None, "refuses"),
        (tmp_path / "x", "file"),
    ):
        named = None if secret is None else f"file:{secret}"
        indexes = Indexes(tmp_path, IndexStores(IndexStore(store=remote.address, secret=named)))
        with pytest.raises(HeadraceError, match=what) as caught:
            indexes.find("docs")
        assert "secret-of-another" not in said(caught.value)
        assert PASSWORD not in said(caught.value)
    indexes = Indexes(tmp_path, IndexStores(IndexStore(store="postgresql://u@h:99999/x?wrong=1&a=b")))
    with pytest.raises(StoreError, match=r"search\.store is no address") as failed:
        indexes.find("docs")
    assert "99999" not in failed.value.message


def test_a_database_that_is_down(remote: Store) -> None:
    index = remote.new()
    index.upsert([row("a", "red apples")])
    with connect(remote.address, remote.secret) as admin:  # as a restart of the server does
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'headrace'"
            " AND datname = current_database()"
        )
    assert by_words(index, "apples") == [("a", "red apples")]
    nobody = IndexStore(store=f"postgresql://u@127.0.0.1:{free_port()}/x")
    down = Indexes(remote.folder, IndexStores(IndexStore(), {"far": nobody}))
    with pytest.raises(IndexUnreachable, match="the index far does not answer") as caught:
        down.find("far")
    assert caught.value.status == 503
    assert "127.0.0.1" not in caught.value.message
    down.find_or_make("here", META)
    assert down.find("here").name == "here"
    with pytest.raises(IndexMissing):
        down.find("nothing")
    with pytest.raises(IndexUnreachable):
        down.names()


def test_one_writer_at_a_time(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.search.postgres.pool.LOCK_TIMEOUT_S", 1)
    index = remote.new()
    index.upsert([row("a", "red apples")])
    with connect(remote.address, remote.secret) as other:
        other.execute("BEGIN")
        other.execute('SELECT * FROM "headrace_index_i".meta FOR UPDATE')
        with pytest.raises(IndexBusy, match="being written"):
            index.upsert([row("b", "blue plums")])
        assert by_words(index, "apples") == [("a", "red apples")]  # searches go on
        other.execute("ROLLBACK")
    assert index.upsert([row("b", "blue plums")]) == 2


def test_a_database_that_takes_not_all_texts(pgvector: Server, tmp_path: Path) -> None:
    store = Store(tmp_path, pgvector.make("narrow", "SQL_ASCII"), pgvector.secret)
    with pytest.raises(StoreError, match="has the encoding SQL_ASCII"):
        store.new()
    assert store.indexes.names() == []
    store.close()


def test_a_phrase_in_too_many_texts(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.search.phrases.MAX_CANDIDATES", 3)
    index = remote.new()
    index.upsert([row(f"k{place}", "late refund payment") for place in range(4)] + [row("k", "pay now")])
    assert by_words(index, "x", keywords=("refund now",)) == []
    assert by_words(index, "pay", keywords=("pay now",)) == [("k", "pay now")]
    with pytest.raises(InvalidRequest, match="more than 3 passages"):
        by_words(index, "refund", keywords=("refund late",))


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExtraMissing, match=r"pip install 'headrace\[pgvector\]'"):
        Indexes(tmp_path, read_search({"store": "postgresql://u@h/d"}))
    assert Indexes(tmp_path).names() == []


def test_settings() -> None:
    found = read_search(
        {"store": "postgresql://u@h/d", "indexes": {"docs": {}, "a": {"store": "postgres://h/d"}}}
    )
    assert found.everything == IndexStore(store="postgresql://u@h/d")
    assert found.own["docs"] == IndexStore()
    for wrong, words in (
        ({"store": "postgresql://u:s3cret@h/d"}, "has a password in it"),
        ({"store": "postgresql://u@h/d?password=s3cret"}, "has a password in it"),
        ({"store": "qdrant+http://s3cret:6333"}, "begins with 'qdrant\\+http'"),
        ({"store": "postgresql://[s3cret"}, "is no address"),
        ({"secret": "env:S3CRET"}, "search.secret is the password of a store"),
        ({"stor": "x"}, "unknown 'stor'"),
        ({"indexes": {"a b": {}}}, "no name of an index"),
        ({"indexes": {"a": {"stoer": 1}}}, "search.indexes.a: unknown 'stoer'"),
        ({"indexes": {"a": 1}}, "search.indexes.a is no table"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            read_search(wrong)
        assert "s3cret" not in said(caught.value)
