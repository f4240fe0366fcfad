"""The ledger: what is booked, once, in balance, and never changed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import NOON, attempt, recorder, reserve, usage

from headrace.economy.entries import Entry
from headrace.economy.ledger import Ledger
from headrace.economy.rates import BillLine
from headrace.errors import StoreError
from headrace.inference.attempts import Hold, TokenCounts
from headrace.storage.database import Database

WRONG = b'{"prompt_tokens": -1}'
COST = 100 * 1_000 + 10 * 10_000


def entry(**values: Any) -> Entry:
    named: dict[str, Any] = {"kind": "attempt", "status": "measured", "started_s": NOON, "booked_s": NOON}
    return Entry(**(named | {"provider": "acme", "model": "big", "request_id": "r", "attempt": 1} | values))


def total(database: Database) -> Any:
    return database.query("SELECT coalesce(sum(nano_usd), 0) FROM ledger_postings")[0][0]


def test_an_attempt_is_debits_by_class_and_what_is_owed() -> None:
    spend = recorder(None)

    async def run() -> int | None:
        return await spend.settle(await reserve(spend), attempt("r"))

    assert asyncio.run(run()) == COST
    [(number, booked)] = spend.ledger.entries()
    assert (booked.status, booked.nano_usd, booked.day) == ("measured", COST, "2026-11-20")
    assert booked.raw_usage == usage(100, 10)
    assert [(one.account, one.quantity, one.nano_usd) for one in spend.ledger.postings(number)] == [
        ("expense:acme/big:input", 100, 100_000),
        ("expense:acme/big:output", 10, 100_000),
        ("payable:acme", 0, -COST),
    ]


@pytest.mark.parametrize(
    ("values", "status", "cost", "reason"),
    [
        ({"billed": "no", "raw_usage": b""}, "not_billed", 0, ""),
        ({"reported_nano_usd": 77}, "reported", 77, ""),
        ({"reported_nano_usd": 77, "raw_usage": b""}, "reported", 77, ""),
        ({"raw_usage": b"", "tokens": TokenCounts(input=3)}, "estimated", 3_000, "counted here"),
        ({"raw_usage": b"", "billed": "maybe"}, "estimated", 200_003, "no usage"),
        ({"raw_usage": WRONG, "tokens": TokenCounts(input=3)}, "estimated", 200_003, "is -1"),
        ({"processing": "batch"}, "estimated", 200_003, "batch"),
        ({"provider": "", "raw_usage": b"", "tokens": TokenCounts(input=3)}, "not_billed", 0, ""),
        ({"processing": "turbo"}, "estimated", 200_003, "turbo"),
    ],
)
def test_what_is_not_measured_says_so(values: dict[str, Any], status: str, cost: int, reason: str) -> None:
    spend = recorder(None)

    async def run() -> int | None:
        return await spend.settle(await reserve(spend), attempt("r", **values))

    assert asyncio.run(run()) == cost
    [(_, booked)] = spend.ledger.entries()
    assert booked.status == status and reason in booked.reason and total(spend.ledger.database) == 0


def test_what_has_no_price_is_unpriced_and_keeps_its_quantities() -> None:
    spend = recorder(None, prices={})

    async def run() -> tuple[int | None, int | None]:
        hold = await reserve(spend, provider="unlisted")
        return hold.nano_usd, await spend.settle(hold, attempt("r", provider="unlisted"))

    assert asyncio.run(run()) == (None, None)
    [(number, booked)] = spend.ledger.entries()
    assert booked.status == "unpriced" and "unlisted" in booked.reason
    assert [(one.account, one.quantity) for one in spend.ledger.postings(number)] == [
        ("unpriced:unlisted/big:input", 100),
        ("unpriced:unlisted/big:output", 10),
    ]


def test_a_second_settlement_changes_nothing(tmp_path: Path) -> None:
    spend = recorder(tmp_path / "store")

    async def run() -> list[int | None]:
        hold, other = await reserve(spend), await reserve(spend)
        first = await spend.settle(hold, attempt("r"))
        again = await spend.settle(hold, attempt("r", raw_usage=usage(1, 1)))
        other_number = await spend.settle(hold, attempt("r", 2))
        other_hold = await spend.settle(other, attempt("r", raw_usage=usage(5, 5)))
        return [first, again, other_number, other_hold]

    assert asyncio.run(run()) == [COST] * 4
    assert len(list(spend.ledger.entries())) == 1
    assert not spend.budgets.holds()
    spend.close()
    after = recorder(tmp_path / "store")  # another process
    assert asyncio.run(after.settle(Hold(1, None), attempt("r"))) == COST
    assert len(list(after.ledger.entries())) == 1


def test_no_attempt_reads_the_whole_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    spend = recorder(None, {"all": {"usd": 1}})
    asked: list[tuple[str, Any]] = []
    query = Database.query

    def noted(self: Database, sql: str, values: Any = ()) -> Any:
        asked.append((sql, values))
        return query(self, sql, values)

    monkeypatch.setattr(Database, "query", noted)

    async def run() -> None:
        hold = await reserve(spend)
        for _ in range(2):
            await spend.settle(hold, attempt("r"))

    asyncio.run(run())
    monkeypatch.undo()
    plans = [spend.ledger.database.query(f"EXPLAIN QUERY PLAN {sql}", values) for sql, values in asked]
    steps = [str(step[3]) for plan in plans for step in plan]
    assert any("ledger_attempts" in step for step in steps)
    assert not [step for step in steps if step.startswith("SCAN") and "CONSTANT" not in step]


def test_attempts_of_a_request_are_entries_of_their_own() -> None:
    spend = recorder(None)

    async def run() -> None:
        for number, kind in enumerate(("first", "retry", "failover", "hedge"), 1):
            await spend.settle(await reserve(spend), attempt("r", number, kind=kind))

    asyncio.run(run())
    assert [one.attempt_kind for _, one in spend.ledger.entries()] == ["first", "retry", "failover", "hedge"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE ledger_entries SET nano_usd = 0", "only added to"),
        ("DELETE FROM ledger_entries", "only added to"),
        ("UPDATE ledger_postings SET nano_usd = 0", "only added to"),
        ("DELETE FROM ledger_postings", "only added to"),
        ("INSERT INTO ledger_postings VALUES (1, 9, 'expense:x', 'x', 1, 5)", "closed"),
        ("INSERT OR REPLACE INTO ledger_postings VALUES (1, 0, 'expense:x', 'x', 1, 5)", "closed"),
        ("INSERT OR REPLACE INTO ledger_entries SELECT * FROM ledger_entries", "is there"),
        ("INSERT INTO ledger_postings VALUES (2, 0, 'expense:x', 'x', 1, 5)", "FOREIGN KEY"),
    ],
)
def test_the_tables_refuse_to_be_changed(statement: str, said: str) -> None:
    database = Database(None)
    Ledger(database).add(entry(), [BillLine("input", 1, 5)])
    with pytest.raises(StoreError, match=said):
        database.execute(statement)
    assert total(database) == 0


def test_an_entry_out_of_balance_is_refused() -> None:
    database = Database(None)
    with pytest.raises(StoreError, match="sum to zero"), database.transaction() as connection:
        connection.execute("INSERT INTO ledger_postings VALUES (1, 9, 'expense:x', 'x', 1, 5)")
        Ledger(database).add(entry(), [BillLine("input", 1, 5)])
    assert database.query("SELECT count(*) FROM ledger_postings") == [(0,)]


def test_an_attempt_is_there_once_whoever_writes() -> None:
    database = Database(None)
    ledger = Ledger(database)
    ledger.add(entry(), [])
    with pytest.raises(StoreError, match="UNIQUE"):
        ledger.add(entry(), [])


def test_corrections_add_to_what_they_correct() -> None:
    ledger = Ledger(Database(None))
    first = ledger.add(entry(), [BillLine("input", 100, 100), BillLine("output", 5, 50)])
    ledger.add(entry(kind="correction", corrects=first), [BillLine("input", 0, -40)])
    assert ledger.cost(first) == 110
    assert ledger.lines(first) == {"input": (100, 60), "output": (5, 50)}
    assert total(ledger.database) == 0


LINES = st.lists(
    st.builds(
        BillLine,
        st.sampled_from(["input", "output", "estimate"]),
        st.integers(0, 10**9),
        st.integers(-(10**15), 10**15),
    ),
    max_size=4,
)


@settings(max_examples=60)
@given(st.lists(LINES, max_size=6))
def test_all_postings_sum_to_zero_whatever_is_booked(drawn: list[list[BillLine]]) -> None:
    ledger = Ledger(Database(None))
    for place, lines in enumerate(drawn):
        ledger.add(entry(request_id=str(place)), lines)
        assert total(ledger.database) == 0
    for number, one in ledger.entries():
        assert one.nano_usd == sum(line.nano_usd for line in drawn[number - 1])


def test_a_cancelled_request_is_booked(tmp_path: Path) -> None:
    spend = recorder(tmp_path / "store")

    async def run() -> None:
        hold = await reserve(spend)
        task = asyncio.create_task(spend.settle(hold, attempt("r")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    spend.close()
    assert [one.nano_usd for _, one in spend.ledger.entries()] == [COST]


def test_what_cannot_be_booked_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spend = recorder(tmp_path / "store")
    hold = asyncio.run(reserve(spend))
    spend.ledger.database.close()
    (tmp_path / "store").write_bytes(b"no database at all, but long enough to be read as one" * 20)
    for other in tmp_path.glob("store-*"):
        other.unlink()
    with pytest.raises(StoreError):
        asyncio.run(spend.settle(hold, attempt("the-request")))
    assert "the-request" in caplog.text


def test_a_locked_store_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "store"
    spend = recorder(path)
    hold = asyncio.run(reserve(spend))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def run() -> int | None:
        task = asyncio.create_task(spend.settle(hold, attempt("r")))
        await asyncio.sleep(1.3)  # longer than the store itself waits
        assert not task.done()
        other.execute("ROLLBACK")
        return await task

    assert asyncio.run(run()) == COST
    other.close()
