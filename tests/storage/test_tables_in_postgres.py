"""The tables that several fronts share give the same in SQLite and in PostgreSQL."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.config.settings import Settings
from headrace.errors import InvalidRequest, StoreBusy, StoreError, UsageError
from headrace.inference.batches.batch_files import publish
from headrace.storage import claim
from headrace.storage.agent_runs import AgentRuns
from headrace.storage.aliases import Alias, Aliases
from headrace.storage.batches import Batches, Line, LineState, StoredBatch
from headrace.storage.claim import StoreClaim, StoreLease, claim_of
from headrace.storage.database import Database
from headrace.storage.deletion import delete_everywhere
from headrace.storage.files import Files
from headrace.storage.idempotent_replies import IdempotentReplies, KeptReply
from headrace.storage.key_use import KeyUse
from headrace.storage.keys import KeyLimits, Keys
from headrace.storage.ledger_store import check_keys
from headrace.storage.provider_lines import ProviderLines
from headrace.storage.responses import Responses, StoredItem
from headrace.storage.sql_store import SqlStore
from postgres_server import running_postgres

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
from headrace.storage import postgres  # noqa: E402  (needs the extra)
from headrace.storage.postgres import PARTS, PostgresDatabase  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as found:
        yield found.url


@pytest.fixture
def url(server: str) -> str:
    """A database of the test's own."""
    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def two(url: str) -> Iterator[tuple[SqlStore, SqlStore]]:
    """The store of two servers."""
    found = PostgresDatabase(url, PARTS["STORE"]), PostgresDatabase(url, PARTS["STORE"])
    yield found
    for one in found:
        one.close()


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def store(request: pytest.FixtureRequest) -> SqlStore:
    if request.param == "SQLite":
        return Database(None)
    return request.getfixturevalue("two")[0]


def test_a_database_that_is_not_there_is_no_busy_one(server: str) -> None:
    database = PostgresDatabase(server.replace("/postgres?", "/nobody_made_it?"), PARTS["STORE"])
    with pytest.raises(StoreBusy, match=r"store's PostgreSQL has no such user or database: .* `ledger`$"):
        database.query("SELECT 1")


def test_keys_are_added_and_revoked(store: SqlStore) -> None:
    keys = Keys(store)
    assert not keys.ever() and keys.version() == 0 and len(keys.pepper()) == 32
    keys.add("a", KeyLimits(60, None, 2, -1))
    with pytest.raises(InvalidRequest, match="choose another name"):
        keys.add("a", KeyLimits())
    assert keys.version() == 1 and [key.limits for key in keys.all()] == [KeyLimits(60, None, 2, -1)]
    keys.revoke("a")
    assert keys.version() == 2 and keys.all() == [] and keys.ever()
    keys.add("a", KeyLimits())
    assert Keys(store).pepper() == keys.pepper()


def test_files_are_listed_and_read_in_parts(store: SqlStore) -> None:
    files = Files(store)
    found = [files.add("o", name, "batch", [b"ab", b"c"], expires_after_s=None) for name in "abc"]
    other = files.add("o", "d", "user_data", [b"\0\xff"], expires_after_s=3600)
    assert b"".join(files.parts(found[0].id)) == b"abc" and files.total_bytes("o") == 11
    page = files.page("o", purpose=None, after=found[2].id, limit=1, newest_first=True)
    assert [file.filename for file in page] == ["b"]
    page = files.page("o", purpose="batch", after=found[0].id, limit=9, newest_first=False)
    assert [file.filename for file in page] == ["b", "c"] and page[0].bytes == 3
    assert files.get("p", other.id) is None and files.delete("o", other.id)
    assert list(files.parts(other.id)) == []


def test_batches_are_listed_run_and_ended(store: SqlStore) -> None:
    batches, lines = Batches(store), ProviderLines(store)
    made = [
        batches.add(
            "o",
            [Line(1, "x", b"1"), Line(2, None, None, LineState.FAILED, b"r"), Line(3, "z", b"3")],
            endpoint="/v1/responses",
            input_file_id="f",
            completion_window="24h",
            window_s=60,
            metadata=None,
            files_expire_after_s=None,
        )
        for _ in range(3)
    ]
    ids = [batch.id for batch in made]
    assert (made[0].total, made[0].failed, made[0].completed) == (3, 1, 0)
    assert [one.id for one in batches.page("o", after=ids[2], limit=1)] == [ids[1]]
    assert [one.id for one in batches.page("o", after=None, before=ids[0], limit=1)] == [ids[1]]
    assert Batches(store, "msgbatch").page("o", after=None, limit=9) == []
    assert [line.place for line in batches.pending(ids[0], after=0, limit=9)] == [1, 3]
    batches.record(ids[0], 1, LineState.COMPLETED, b"first")
    batches.record(ids[0], 1, LineState.FAILED, b"second")
    lines.wait(ids[0], 3, target="t", path="/p", asked=b"asked", size=5)
    lines.wait(ids[0], 3, target="t", path="/p", asked=b"asked", size=5)
    assert lines.unsent(ids[0]) == [("t", "/p", 3, 5)]
    lines.add_job("job", ids[0], "t", "/p", [3])
    [job] = lines.jobs(ids[0])
    lines.answer(job, [(3, 200, b"answer")])
    waiting = lines.find(ids[0], 3)
    assert waiting is not None and (waiting.rounds, waiting.answer) == (2, b"answer")
    lines.forget(ids[0], 3)
    assert lines.uncollected(ids[0]) == []
    assert batches.cancel("o", ids[0]) is not None
    batches.close(ids[0], "cancelled")
    assert [line.reply for line in batches.ended_lines(ids[0], after=0, limit=9)] == [b"first", b"r", None]
    batches.publish(ids[0], output_file_id="out", error_file_id=None, usage="{}")
    ended = batches.get("o", ids[0])
    assert ended is not None and (ended.status, ended.completed, ended.failed) == ("cancelled", 1, 2)
    assert [batch.id for batch in batches.open()] == ids[1:]
    batches.delete("o", ids[0])
    assert batches.get("o", ids[0]) is None


def test_a_batch_names_no_file_that_another_server_threw_away(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, files = Batches(store), Files(store)
    reply = b'{"response": {"body": {}}}'
    made = batches.add(
        "o",
        [Line(1, "x", None, LineState.COMPLETED, reply)],
        endpoint="/v1/responses",
        input_file_id="f",
        completion_window="24h",
        window_s=60,
        metadata=None,
        files_expire_after_s=None,
    )
    batches.close(made.id, "completed")
    append = Files.append

    def overtaken(self: Files, file_id: str, place: int, data: bytes) -> None:
        append(self, file_id, place, data)
        files.forget_unfinished(made.id)  # as the other begins

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="another server writes"):
        patch.setattr(Files, "append", overtaken)
        publish(store, made, "completed")
    batch = batches.get("o", made.id)
    assert batch is not None and batch.ended_s is None
    publish(store, made, "completed")
    batch = batches.get("o", made.id)
    assert batch is not None and batch.output_file_id is not None
    assert b"".join(files.parts(batch.output_file_id)) == reply


def test_responses_continue_each_other_and_are_deleted(store: SqlStore) -> None:
    responses = Responses(store)
    for name, previous in (("a", None), ("b", "a")):
        responses.add(name, "o", "in_progress", previous, b"{}", [StoredItem(f"{name}-in", b"x")])
        responses.finish(name, "completed", b"{}", [StoredItem(f"{name}-out", b"y")], [b"0", b"1"])
    assert [one.id for one in responses.chain("o", "b")] == ["a", "b"]
    assert responses.item("o", "a-out") == StoredItem("a-out", b"y")
    assert responses.events("b", 0) == [b"1"]
    AgentRuns(store).begin("b", "o", b"{}")
    assert delete_everywhere(store, "b", "o") and not delete_everywhere(store, "b", None)
    assert responses.delete("o", "a") and responses.item("o", "a-out") is None


def test_steps_aliases_and_kept_replies_are_replaced(store: SqlStore) -> None:
    runs, aliases, replies = AgentRuns(store), Aliases(store), IdempotentReplies(store)
    runs.begin("r", "o", b"{}")
    for _ in range(2):
        runs.start("r", "s")
        runs.finish("r", "s", b"done")
    assert runs.steps("r") == {"s": b"done"} and runs.begin("r", "o", b"") == b"{}"
    for target in ("x", "y"):
        aliases.put(Alias(name="n", target=target, created_s=1))
    assert [alias.target for alias in aliases.all()] == ["y"]
    for body in (b"1", b"2 of req_abc"):
        replies.add(b"p", KeptReply(b"d", 1, 200, (), {}, body))
    kept = replies.find(b"p")
    assert kept is not None and kept.body == b"2 of req_abc"
    replies.forget(["nothing", "abc"])
    assert replies.find(b"p") is None


def test_work_is_of_one_server_until_it_ends_or_is_not_heard_of(
    two: tuple[SqlStore, SqlStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (claim_of(store, "batches") for store in two)
    assert isinstance(one, StoreLease) and isinstance(claim_of(Database(None), "batches"), StoreClaim)
    assert one.held() and not other.held() and one.held()
    one.close()
    assert other.held() and not one.held()
    two[0].execute("UPDATE claims SET until_s = until_s - 20")  # nothing was heard of it
    assert one.held()
    monkeypatch.setattr(claim, "LEASE_S", 0.0)  # asks again at once
    assert not other.held()


def ended_batch(store: SqlStore) -> StoredBatch:
    """One whose two lines have run."""
    batches = Batches(store)
    made = batches.add(
        "o",
        [Line(1, "x", b"1"), Line(2, "y", b"2")],
        endpoint="/v1/responses",
        input_file_id="f",
        completion_window="24h",
        window_s=60,
        metadata=None,
        files_expire_after_s=None,
    )
    for place in (1, 2):
        batches.record(made.id, place, LineState.COMPLETED, b'{"response":{"body":{}}}\n')
    batches.close(made.id, "completed")
    return made


def visible(store: SqlStore) -> list[str]:
    return [one.id for one in Files(store).page("o", purpose=None, after=None, limit=9, newest_first=True)]


def test_two_servers_that_end_a_batch_at_once_give_it_its_files_once(
    two: tuple[SqlStore, SqlStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stood still for longer than its lease, while it wrote the files."""
    batch = ended_batch(two[0])
    read, began = Batches.ended_lines, list[str]()

    def ended_lines(self: Batches, batch_id: str, *, after: int, limit: int) -> list[Line]:
        found = read(self, batch_id, after=after, limit=limit)
        if not began:
            began.append(batch_id)
            publish(two[1], batch, "completed")
        return found

    monkeypatch.setattr(Batches, "ended_lines", ended_lines)
    publish(two[0], batch, "completed")
    ended = Batches(two[0]).get("o", batch.id)
    assert ended is not None and visible(two[0]) == [ended.output_file_id]
    assert two[0].query("SELECT count(*) FROM files") == [(1,)]


def test_what_the_address_says_counts_and_a_lost_machine_is_noticed(url: str) -> None:
    """Of two stores in schemas of their own each has its own keys."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA tenant")
    tenant = f"{url}&options=-csearch_path%3Dtenant&keepalives_idle=7&application_name=mine"
    first, second = PostgresDatabase(url, PARTS["STORE"]), PostgresDatabase(tenant, PARTS["STORE"])
    Keys(first).add("a", KeyLimits())
    assert Keys(first).ever() and not Keys(second).ever()
    assert second.query("SHOW lock_timeout") == [("10s",)]
    for database, idle, name in ((first, "10", "headrace"), (second, "7", "mine")):
        assert database._reader is not None
        found = database._reader.info.get_parameters()
        assert (found["keepalives_idle"], found["keepalives_count"]) == (idle, "3")
        assert found["application_name"] == name and int(found["tcp_user_timeout"]) < 60_000
        database.close()


def test_an_address_that_is_none_is_in_no_traceback() -> None:
    secret = "se%zz" + secrets.token_hex(4)
    with pytest.raises(StoreError, match="none that PostgreSQL's library takes") as caught:
        PostgresDatabase(f"postgresql://headrace:{secret}@db/headrace").query("SELECT 1")
    assert secret not in "".join(traceback.format_exception(caught.value))


def test_a_server_with_keys_of_its_own_does_not_start_without_common_ones(url: str, tmp_path: Path) -> None:
    settings = Settings(store=tmp_path / "s.sqlite3", ledger=url, cluster={"fronts": 2})
    check_keys(settings)
    own, common = Database(settings.store_file), PostgresDatabase(url, PARTS["STORE"])
    Keys(own).add("a", KeyLimits())
    check_keys(replace(settings, cluster=None))
    with pytest.raises(UsageError, match="all servers share has none"):
        check_keys(settings)
    Keys(common).add("b", KeyLimits())
    check_keys(settings)
    for database in (own, common):
        database.close()


def test_requests_of_a_server_that_was_killed_count_no_longer(two: tuple[SqlStore, SqlStore]) -> None:
    one, other = (KeyUse(store) for store in two)
    one.keep_calls("o", 2)
    other.keep_calls("o", 1)
    other.keep_calls("p", 5)
    assert other.open_calls("o") == 2 and one.open_calls("o") == 1 and one.open_calls("p") == 5
    two[0].execute("UPDATE key_calls SET until_s = until_s - 16")
    assert other.open_calls("o") == 0
    other.still_open({"o": 1})
    assert one.open_calls("o") == 1 and one.open_calls("p") == 0
    one.keep_bucket("o", "tokens", -2.5, 1.0)
    one.keep_bucket("o", "tokens", 3.5, 2.0)
    assert other.bucket("o", "tokens") == (3.5, 2.0) and other.bucket("o", "requests") is None


def test_a_text_that_postgresql_does_not_keep_is_refused(two: tuple[SqlStore, SqlStore]) -> None:
    with pytest.raises(InvalidRequest, match=r"U\+0000"):
        Files(two[0]).add("o", "a\0b", "batch", [], expires_after_s=None)
    with pytest.raises(InvalidRequest, match=r"U\+0000"):
        Files(two[0]).get("o", "\0")
    assert Files(two[0]).page("o", purpose=None, after=None, limit=9, newest_first=True) == []


def test_ledger_and_store_wait_for_their_own_part_alone(
    url: str, two: tuple[SqlStore, SqlStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = PostgresDatabase(url)
    two[1].execute("DELETE FROM keys")
    with two[0].transaction():
        assert ledger.execute("DELETE FROM holds") == 0
    with ledger.transaction():
        assert two[0].execute("DELETE FROM keys") == 0
    ledger.close()


def test_transactions_see_what_was_written_while_they_waited(url: str) -> None:
    """Whatever the database has by default: two servers would spend the same money of a budget."""
    store = PostgresDatabase(f"{url}&options=-cdefault_transaction_isolation%3Dserializable")
    with store.transaction():
        assert store.query("SHOW transaction_isolation") == [("read committed",)]
    store.close()


def test_a_server_that_has_become_a_standby_is_left(url: str) -> None:
    """The next call connects anew, to the one that writes now."""
    store = PostgresDatabase(url, PARTS["STORE"])
    with pytest.raises(StoreBusy, match="it only reads"), store.transaction():
        store._open_writer().execute("SET TRANSACTION READ ONLY")
        store.execute("DELETE FROM keys")
    assert store._writer is None and store.execute("DELETE FROM keys") == 0
    store.close()


def test_a_server_that_stands_still_does_not_hold_up_the_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "IDLE_TIMEOUT_S", 1)
    still, other = (PostgresDatabase(url, PARTS["STORE"]) for _ in range(2))
    other.execute("DELETE FROM keys")
    with pytest.raises((StoreBusy, StoreError)), still.transaction():
        assert other.execute("DELETE FROM keys") == 0  # its turn comes when the first is ended
        still.execute("DELETE FROM keys")
    assert still.execute("DELETE FROM keys") == 0
    for database in (still, other):
        database.close()
