"""Budgets are never exceeded: many at once, many processes, crashes, clocks that jump."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from recording import NOON, FakeClock, attempt, recorder, reserve, usage

from headrace.economy.budget_settings import Attempted, read_budgets
from headrace.economy.grouped_work import GroupedWork
from headrace.economy.holder import Holder, has_ended, this_process
from headrace.errors import BudgetExceeded, PriceUnknown, UsageError
from headrace.inference.attempts import Hold
from headrace.storage.database import Database

MOST = 100 * 1_000 + 10 * 10_000 + 3  # what `reserve` sets aside; 3 for roundings


def test_a_thousand_at_once_never_exceed_a_dollar(tmp_path: Path) -> None:
    """Each may cost up to $0.01, so 100 fit; each then costs half, and more fit until none does."""
    spend = recorder(tmp_path / "store", {"all": {"usd": 1}})
    dollar = 10**9

    async def one(name: int) -> int | None:
        hold = None
        for _ in range(3):
            try:
                hold = await reserve(spend, 9_995, 0)
                break
            except BudgetExceeded:
                await asyncio.sleep(0)
        if hold is None:
            return None
        spent, held = spend.budgets.used("all", "total")
        assert spent + held <= dollar
        return await spend.settle(hold, attempt(str(name), raw_usage=usage(5_000, 0)))

    async def run() -> list[int | None]:
        return await asyncio.gather(*(one(name) for name in range(1_000)))

    costs = [cost for cost in asyncio.run(run()) if cost is not None]
    spent, held = spend.budgets.used("all", "total")
    assert held == 0 and spent == sum(costs) <= dollar
    assert 100 <= len(costs) < 1_000


def test_to_the_last_nano_dollar() -> None:
    for usd, fits in ((MOST / 10**9, True), ((MOST - 1) / 10**9, False)):
        spend = recorder(None, {"all": {"usd": usd}})
        if fits:
            assert asyncio.run(reserve(spend)).nano_usd == MOST
        else:
            with pytest.raises(BudgetExceeded, match="allows"):
                asyncio.run(reserve(spend))


WORKER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from recording import recorder, reserve, attempt, usage
from headrace.errors import BudgetExceeded
spend = recorder(Path(sys.argv[1]), {"all": {"usd": 0.1}})
async def one(name):
    try:
        hold = await reserve(spend, 999, 0)
    except BudgetExceeded:
        return 0
    return await spend.settle(hold, attempt(name, raw_usage=usage(999, 0)))
async def run():
    return await asyncio.gather(*(one(f"{sys.argv[2]}-{place}") for place in range(60)))
print(sum(asyncio.run(run())))
"""


def test_several_processes_share_a_budget(tmp_path: Path) -> None:
    path, here = tmp_path / "store", str(Path(__file__).parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path), str(name), here], stdout=subprocess.PIPE, text=True
        )
        for name in range(3)
    ]
    booked = [int(process.communicate(timeout=120)[0]) for process in started]
    spend = recorder(path, {"all": {"usd": 0.1}})
    spent, held = spend.budgets.used("all", "total")
    assert held == 0
    assert spent == sum(booked) <= 10**8
    assert spent > 10**8 - 2 * 999_000  # and it is used up: 180 ask, about 100 fit


CRASH = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from recording import recorder, reserve
spend = recorder(Path(sys.argv[1]), {"all": {"usd": 0.0003}})
print(asyncio.run(reserve(spend)).id, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_killed_process_blocks_nothing_and_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "store"
    arguments = [sys.executable, "-c", CRASH, str(path), str(Path(__file__).parent)]
    killed = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    spend = recorder(path, {"all": {"usd": 0.0003}})
    assert spend.budgets.used("all", "total") == (0, MOST)
    hold = asyncio.run(reserve(spend))  # it fits only without the other
    assert spend.budgets.used("all", "total") == (0, MOST)
    [(_, lost)] = spend.ledger.entries()
    assert (lost.kind, lost.hold, lost.outcome) == ("lost", int(killed.stdout), "lost")
    assert "up to $0.00020" in lost.reason
    # The other was only slow to say what it cost: then that is booked, once, and counts.
    late = attempt("late")
    assert asyncio.run(spend.settle(Hold(lost.hold, MOST), late)) == 200_000
    assert asyncio.run(spend.settle(Hold(lost.hold, MOST), late)) == 200_000
    assert spend.budgets.used("all", "total") == (200_000, MOST)
    assert hold.id != lost.hold


def test_who_is_gone_before_it_is_reserved_holds_nothing(tmp_path: Path) -> None:
    spend = recorder(tmp_path / "store", {"all": {"usd": 1}})

    async def run() -> None:
        for _ in range(5):
            task = asyncio.create_task(reserve(spend))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await reserve(spend)
        await asyncio.sleep(0)

    asyncio.run(run())
    spend.close()
    assert len(spend.budgets.holds()) == 1


def test_a_hold_of_who_cannot_be_asked_ends_with_its_lease() -> None:
    clock = FakeClock(1_000.0)
    elsewhere = Holder("", "", 1, "")  # in another container
    spend = recorder(None, {"all": {"usd": 0.0003}}, machine_clock=clock, holder=elsewhere, lease_s=60.0)
    asyncio.run(reserve(spend))
    clock.now_s += 59.9
    with pytest.raises(BudgetExceeded):
        asyncio.run(reserve(spend))
    clock.now_s += 0.1
    asyncio.run(reserve(spend))
    assert len(spend.budgets.holds()) == 1


def test_who_has_ended_is_known_or_not_said() -> None:
    me = this_process()
    assert not has_ended(me.text)
    assert not has_ended("nonsense")
    assert not has_ended(Holder("", me.namespace, me.pid, me.started).text)
    if me.boot:
        assert has_ended(Holder("another boot", me.namespace, me.pid, me.started).text)
        assert has_ended(Holder(me.boot, me.namespace, me.pid, "1").text)  # its number was given to another
        assert not has_ended(Holder(me.boot, "another namespace", me.pid, "1").text)


def test_a_clock_that_jumps_does_not_free_money() -> None:
    clock = FakeClock(NOON)
    spend = recorder(None, {"all": {"usd_per_day": 0.0003}}, clock=clock)
    first = asyncio.run(reserve(spend))
    for jump in (-3_600.0, 3_600.0, 11 * 3_600.0):  # on the same day
        clock.now_s = NOON + jump
        with pytest.raises(BudgetExceeded):
            asyncio.run(reserve(spend))
    clock.now_s = NOON + 12 * 3_600.0  # midnight: another day, of which nothing is used
    second = asyncio.run(reserve(spend))
    clock.now_s = NOON
    with pytest.raises(BudgetExceeded):
        asyncio.run(reserve(spend))
    # What was reserved on a day is charged to it, whenever it ends.
    clock.now_s = NOON + 40 * 86_400.0
    asyncio.run(spend.settle(first, attempt("a", started_unix_s=clock.now_s)))
    asyncio.run(spend.settle(second, attempt("b", started_unix_s=NOON - 86_400.0)))
    assert spend.budgets.used("all", "2026-11-20") == spend.budgets.used("all", "2026-11-21") == (200_000, 0)


ONE = {
    "key": "alice",
    "route": "best",
    "target": "far",
    "provider": "acme",
    "model": "big",
    "request_id": "r",
}


def covered(table: dict[str, Any], **values: str) -> list[str]:
    seen = Attempted(**(ONE | values), unix_s=NOON)
    return [
        f"{limit.budget} {limit.period}"
        for budget in read_budgets(table)
        if budget.covers(seen)
        for limit in budget.limits_of(seen)
    ]


def test_whom_and_what_a_budget_bounds() -> None:
    assert covered({"a": {"usd": 1}}) == ["a total"]
    assert covered({"a": {"usd_per_day": 1, "usd_per_month": 9}}) == ["a 2026-11-20", "a 2026-11"]
    team = {"team": {"usd": 1, "keys": ["bob", "al*"]}}
    assert covered(team) == ["team total"] and covered(team, key="eve") == []
    each = {"each": {"usd": 1, "each": "key"}}
    assert covered(each) == ["each/alice total"] and covered(each, key="eve") == ["each/eve total"]
    by_model = {"m": {"usd": 1, "targets": ["acme/*"]}}
    assert covered(by_model) == ["m total"] and covered(by_model, provider="other") == []
    assert covered({"m": {"usd": 1, "targets": ["far"]}}) == ["m total"]
    route = {"r": {"usd": 1, "routes": ["best"]}}
    assert covered(route) == ["r total"] and covered(route, route="other") == []
    assert covered({"q": {"usd_per_request": 1}}) == ["q request r"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (3, "is a table"),
        ({}, "has no limit"),
        ({"usd_per_month": "much"}, "must be dollars"),
        ({"usd_per_month": -1}, "must be dollars"),
        ({"usd_per_week": 1}, "did you mean"),
        ({"usd": 1, "keys": []}, "list of names"),
        ({"usd": 1, "each": "person"}, "must be one of key, provider"),
        ({"usd": 1, "unpriced": "ignore"}, "must be one of refuse, allow"),
    ],
)
def test_wrong_budgets_are_refused_by_name(entry: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_budgets({"a": entry})


def test_a_request_has_its_limit_over_all_its_attempts() -> None:
    spend = recorder(None, {"q": {"usd_per_request": 0.0005}})

    async def run() -> None:
        await spend.settle(await reserve(spend, request_id="r"), attempt("r"))
        await spend.settle(await reserve(spend, request_id="r"), attempt("r", 2))
        with pytest.raises(BudgetExceeded, match="in one request"):
            await reserve(spend, request_id="r")
        await reserve(spend, request_id="s")
        await reserve(spend)  # nothing is known of the request: its attempts count alone
        with pytest.raises(BudgetExceeded):
            await reserve(spend, 600, 0)

    asyncio.run(run())


def test_a_budget_refuses_what_has_no_price_unless_it_says_otherwise() -> None:
    with pytest.raises(PriceUnknown, match="cannot be kept with unlisted/big"):
        asyncio.run(reserve(recorder(None, {"all": {"usd": 1}}), provider="unlisted"))
    allows = recorder(None, {"all": {"usd": 1, "unpriced": "allow"}})
    hold = asyncio.run(reserve(allows, provider="unlisted"))
    assert hold.nano_usd is None
    # What it states itself counts.
    stated = attempt("r", provider="unlisted", reported_nano_usd=5)
    assert asyncio.run(allows.settle(hold, stated)) == 5
    assert allows.budgets.used("all", "total") == (5, 0)


def test_this_machine_is_not_reserved() -> None:
    spend = recorder(None, {"all": {"usd": 0}})
    assert asyncio.run(reserve(spend, provider="")).nano_usd == 0


class Spending(RuleBasedStateMachine):
    """Any order of reserving, settling, crashing and jumping clocks keeps every budget and every sum."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.machine = FakeClock(NOON), FakeClock(0.0)
        self.spend = recorder(
            None,
            {
                "day": {"usd_per_day": 0.001},
                "alice": {"usd": 0.002, "keys": ["alice"]},
                "req": {"usd_per_request": 0.0008},
            },
            clock=self.clock,
            machine_clock=self.machine,
            holder=Holder("", "", 1, ""),
            lease_s=100.0,
        )
        self.open: list[tuple[Hold, int, int, str]] = []
        self.settled: list[tuple[Hold, Any, int | None]] = []
        self.count = 0

    @rule(
        given=st.integers(0, 400),
        output=st.integers(0, 40),
        key=st.sampled_from(["alice", "bob"]),
        request=st.integers(0, 5),
    )
    def reserve(self, given: int, output: int, key: str, request: int) -> None:
        try:
            hold = asyncio.run(reserve(self.spend, given, output, account=key, request_id=f"r{request}"))
        except BudgetExceeded:
            return
        self.open.append((hold, given, output, key))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        hold, given, output, key = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.count += 1
        used = usage(data.draw(st.integers(0, given)), data.draw(st.integers(0, output)))
        raw = data.draw(st.sampled_from([used, used, b"", b'{"prompt_tokens": -1}']))
        billed = data.draw(st.sampled_from(["yes", "maybe", "no"]))
        ended = attempt(f"settled{self.count}", raw_usage=raw, billed=billed, account=key)
        cost = asyncio.run(self.spend.settle(hold, ended))
        self.settled.append((hold, ended, cost))

    @precondition(lambda self: self.settled)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        hold, ended, cost = data.draw(st.sampled_from(self.settled))
        assert asyncio.run(self.spend.settle(hold, ended)) == cost

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A hold is never settled, and its lease ends."""
        self.open.clear()
        self.machine.now_s += 101.0
        self.spend.budgets.release_stale()

    @rule(jump=st.floats(-200_000.0, 200_000.0))
    def set_clock(self, jump: float) -> None:
        self.clock.now_s += jump

    @invariant()
    def nothing_is_exceeded_and_all_adds_up(self) -> None:
        database = self.spend.ledger.database
        assert database.query("SELECT coalesce(sum(nano_usd), 0) FROM ledger_postings") == [(0,)]
        most = {"day": 1_000_000, "alice": 2_000_000, "req": 800_000}
        for budget, period in database.query(
            "SELECT budget, period FROM budget_totals UNION SELECT budget, period FROM hold_shares"
        ):
            spent, held = self.spend.budgets.used(str(budget), str(period))
            assert spent + held <= most[str(budget)]
        booked = sum(entry.nano_usd for _, entry in self.spend.ledger.entries())
        assert booked == sum(cost or 0 for _, _, cost in self.settled)
        assert len(self.spend.budgets.holds()) == len(self.open)


Spending.TestCase.settings = settings(max_examples=25, stateful_step_count=20)
TestSpending = Spending.TestCase


def test_work_that_fails_half_way_leaves_nothing_beside_what_does_not() -> None:
    """Also where the store is not what fails: in a group, as alone."""
    database, gate = Database(None), threading.Event()
    work = GroupedWork(database, "test")

    def insert(name: str) -> str:
        with database.transaction():
            database.execute("INSERT INTO secrets VALUES (?, 'x')", (name,))
            return {"a": "done", "b": "done"}[name]

    async def run() -> list[Any]:
        work.submit(gate.wait)
        begun = [work.start(partial(insert, name)) for name in ("a", "broken", "b")]
        gate.set()
        return await asyncio.gather(*begun, return_exceptions=True)

    first, broken, last = asyncio.run(run())
    work.close()
    assert first == last == "done" and isinstance(broken, KeyError)
    assert database.query("SELECT name FROM secrets ORDER BY name") == [("a",), ("b",)]
