"""The ledger in PostgreSQL, which several servers share: budgets, checks and reports as in SQLite."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import PRICES, attempt, reserve

from headrace.economy.budget_settings import read_budgets
from headrace.economy.check import check
from headrace.economy.entries import ENTRY_FIELDS
from headrace.economy.focus import write_focus
from headrace.economy.holder import Holder
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.economy.report import spend_by
from headrace.economy.rerate import rerate
from headrace.errors import BudgetExceeded, StoreBusy, StoreError
from headrace.storage.ledger_store import ledger_store
from postgres_server import running_postgres

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
from headrace.storage import postgres  # noqa: E402  (needs the extra)
from headrace.storage.postgres import PostgresDatabase  # noqa: E402

OPENED: list[LedgerRecorder] = []
SERVERS, REQUESTS = 3, int(os.environ.get("TEST_POSTGRES_REQUESTS", "300"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as found:
        yield found.url


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the test's own."""
    name = f"t{abs(hash(request.node.name)):x}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/postgres?", f"/{name}?")
    while OPENED:
        spend = OPENED.pop()
        spend.close()
        spend.ledger.database.close()


def shared(url: str, usd: float = 1, **options: Any) -> LedgerRecorder:
    budgets = read_budgets({"all": {"usd": usd}})
    OPENED.append(LedgerRecorder(PostgresDatabase(url), PriceBook(PRICES), budgets, **options))
    return OPENED[-1]


def test_an_attempt_is_booked_reported_and_checked(url: str) -> None:
    spend = shared(url)
    hold = asyncio.run(reserve(spend))
    assert spend.budgets.used("all", "total") == (0, hold.nano_usd)
    assert asyncio.run(spend.settle(hold, attempt("r"))) == 200_000
    assert asyncio.run(spend.settle(hold, attempt("r"))) == 200_000
    assert spend.budgets.used("all", "total") == (200_000, 0)
    for by in ("key", "model", "provider", "route", "day", "class", "status"):
        assert sum(row.nano_usd for row in spend_by(spend.ledger.database, by)) == 200_000
    assert write_focus(spend.ledger.database, io.StringIO(), "2026-01-01", "2027-01-01") == 2
    dearer = PriceBook({"acme/*": {"input": 2, "output": 20}})
    [changed] = rerate(spend.ledger, dearer, "2026-01-01", write=True)
    assert changed.after_nano_usd == 400_000 and spend.budgets.used("all", "total") == (400_000, 0)
    report = check(spend.ledger, spend.budgets, spend.prices)
    assert report.problems == () and report.entries == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET nano_usd = 0",
        "DELETE FROM ledger_entries",
        "UPDATE ledger_postings SET nano_usd = 0",
        "DELETE FROM ledger_postings",
        "INSERT INTO ledger_postings VALUES (1, 9, 'x', 'x', 1, 1)",
    ],
)
def test_the_database_keeps_the_rules(url: str, statement: str) -> None:
    spend = shared(url)
    asyncio.run(spend.settle(asyncio.run(reserve(spend)), attempt("r")))
    with pytest.raises(StoreError):
        spend.ledger.database.execute(statement)
    assert check(spend.ledger, spend.budgets, spend.prices).problems == ()


def test_an_entry_that_does_not_sum_to_zero_is_refused(url: str) -> None:
    spend = shared(url)
    asyncio.run(spend.settle(asyncio.run(reserve(spend)), attempt("r")))
    database, columns = spend.ledger.database, ", ".join(ENTRY_FIELDS)
    copied = columns.replace("request_id", "'other'").replace(", hold", ", 0")
    with pytest.raises(StoreError, match="do not sum to zero"), database.transaction():
        database.execute("INSERT INTO ledger_postings VALUES (2, 0, 'x', 'x', 1, 1)")
        database.execute(
            f"INSERT INTO ledger_entries (id, day, {columns}) SELECT 2, day, {copied} FROM ledger_entries"
        )
    with pytest.raises(StoreError, match="foreign key"):
        database.execute("INSERT INTO ledger_postings VALUES (2, 0, 'x', 'x', 1, 1)")
    assert [number for number, _ in spend.ledger.entries()] == [1]


SERVER = """
import asyncio, json, sys
from pathlib import Path
sys.path[:0] = [sys.argv[3], str(Path(sys.argv[3]).parent)]
from headrace.errors import BudgetExceeded
from recording import attempt, reserve, usage
from test_postgres import shared
spend = shared(sys.argv[1])
async def one(name):
    try:
        hold = await reserve(spend, 9_995, 0)
    except BudgetExceeded:
        return 0
    print("reserved", flush=True)
    return await spend.settle(hold, attempt(name, raw_usage=usage(4_000, 0)))
async def run():
    return await asyncio.gather(*(one(f"{sys.argv[2]}-{place}") for place in range(int(sys.argv[4]))))
print(sum(asyncio.run(run())))
"""


def test_servers_share_a_dollar_and_one_is_killed(url: str) -> None:
    here = str(Path(__file__).parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SERVER, url, str(name), here, str(REQUESTS)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in range(SERVERS)
    ]
    try:
        said: dict[int, str] = {}
        for number, process in enumerate(started):  # one that starts late may find nothing left
            assert process.stdout is not None
            said[number] = process.stdout.readline()
            if said[number] == "reserved\n":
                break
        killed = started[len(said) - 1]
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
        booked = [
            int((said.get(number, "") + process.communicate(timeout=300)[0]).splitlines()[-1])
            for number, process in enumerate(started)
            if process is not killed
        ]
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    spend = shared(url)
    spend.budgets.release_stale()
    spent, held = spend.budgets.used("all", "total")
    entries = [entry for _, entry in spend.ledger.entries()]
    assert held == 0 and spent <= 10**9
    assert spent == sum(entry.nano_usd for entry in entries) >= sum(booked)
    assert spent > 10**9 - 100 * 10_000_000
    assert check(spend.ledger, spend.budgets, spend.prices).problems == ()


def test_holds_of_another_machine_end_with_their_lease(url: str) -> None:
    """Its boot is another one: that does not mean that it has ended."""
    elsewhere = Holder("another-boot", "pid:[1]", 1, "1")
    first = shared(url, 0.0003, holder=elsewhere)
    asyncio.run(reserve(first))
    second = shared(url, 0.0003)
    with pytest.raises(BudgetExceeded):
        asyncio.run(reserve(second))
    third = shared(url, 0.0003, holder=elsewhere, lease_s=-1.0)
    assert third.budgets.release_stale() == 0
    database = second.ledger.database
    database.execute("UPDATE holds SET expires_s = expires_s - 7200")
    assert asyncio.run(reserve(second)).nano_usd


def test_a_connection_that_breaks_is_made_again(url: str, server: str) -> None:
    spend = shared(url)
    asyncio.run(reserve(spend))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'headrace' AND pid != pg_backend_pid()"
        )
    assert asyncio.run(reserve(spend)).nano_usd  # the recorder tries again


def test_no_server_is_busy_and_no_password_is_shown(tmp_path: Path) -> None:
    for url in (f"postgresql://me:sesame@/x?host={tmp_path}", "postgresql://me:sesame@/x?hosts=1"):
        with pytest.raises((StoreBusy, StoreError)) as raised:
            ledger_store(None, url).query("SELECT 1")  # type: ignore[arg-type]
        assert "sesame" not in str(raised.value)


def test_a_turn_that_does_not_come_leaves_the_connection_usable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOCK_TIMEOUT_S", 1)
    one, other = PostgresDatabase(url), PostgresDatabase(url)
    assert other.execute("DELETE FROM holds") == 0
    with one.transaction(), pytest.raises(StoreBusy):
        other.execute("DELETE FROM holds")
    assert other.execute("DELETE FROM holds") == 0
    for database in (one, other):
        database.close()
