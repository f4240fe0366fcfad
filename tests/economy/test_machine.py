"""The machine's price, split over requests and idle time to the nano-dollar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.economy.ledger import Ledger
from headrace.economy.machine import (
    HOUR_NS,
    MachineHandler,
    MachineMeter,
    MachineRecorder,
    MachineShare,
)
from headrace.engine.request import Usage
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared, Started
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits


class NanoClock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_two_at_a_time_pay_half_each() -> None:
    clock = NanoClock()
    meter = MachineMeter(3_600_000, clock)  # 1,000 nano-dollars a second
    first, second = MachineShare(), MachineShare()
    clock.now = 10**9
    meter.begin(first)
    clock.now = 3 * 10**9
    meter.begin(second)
    clock.now = 5 * 10**9
    meter.end(first)
    clock.now = 6 * 10**9
    meter.end(second)
    clock.now = 10 * 10**9
    assert (first.nano_usd, second.nano_usd) == (2_000 + 1_000, 1_000 + 1_000)
    assert meter.take_idle().nano_usd == 1_000 + 4_000
    assert meter.take_idle() == MachineShare()


@given(
    st.integers(0, 10**12),
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 5)), max_size=40),
)
def test_shares_and_idle_time_are_the_price(price: int, moves: list[tuple[int, int]]) -> None:
    """Any requests that begin and end: nothing is lost or made up, up to what is not a whole nano-dollar
    yet."""
    clock = NanoClock()
    meter = MachineMeter(price, clock)
    running: dict[int, MachineShare] = {}
    ended: list[MachineShare] = []
    for wait, name in moves:
        clock.now += wait
        if name in running:
            meter.end(running[name])
            ended.append(running.pop(name))
        else:
            running[name] = MachineShare()
            meter.begin(running[name])
    for share in list(running.values()):
        meter.end(share)
        ended.append(share)
    given_out = sum(share.nano_usd for share in ended) + meter.take_idle().nano_usd
    assert given_out == clock.now * price // HOUR_NS
    assert all(share.nano_usd >= 0 for share in ended)


class OneRequest:
    def __init__(self, clock: NanoClock) -> None:
        self.clock = clock

    async def handle(self, request: Any, call: CallContext) -> AsyncGenerator[Any]:
        yield [Prepared("mini", ())]
        yield [Started()]
        self.clock.now += 2 * 10**9
        call.usages.append(Usage(100, 20, 60))
        yield ["text"]


def test_a_request_that_goes_on_after_a_kill_is_booked_once() -> None:
    clock, ledger = NanoClock(), Ledger(Database(None))
    for process in range(2):  # the first was killed before it had noted the end of the request
        recorder = MachineRecorder(ledger, MachineMeter(3_600_000, clock))
        for number in (1, 2):
            share = recorder.begin()
            clock.now += 10**9
            call = CallContext(request_id=f"try{process}", account=Account("", KeyLimits()), work_id="line")
            recorder.end(share, call, [Usage(10, 2, 0)], number)
        recorder.close()
    entries = [one for _, one in ledger.entries()]
    assert [(one.request_id, one.attempt) for one in entries if one.model != "idle"] == [
        ("line", 1),
        ("line", 2),
    ]
    assert sum(one.nano_usd for one in entries) == 4_000, "all of the machine's time is there"


@pytest.mark.parametrize("until_the_end", [True, False])
def test_requests_are_booked_with_their_tokens(until_the_end: bool) -> None:
    clock, ledger = NanoClock(), Ledger(Database(None))
    recorder = MachineRecorder(ledger, MachineMeter(3_600_000, clock))
    handler = MachineHandler(OneRequest(clock), recorder)

    async def run() -> None:
        call = CallContext(request_id="r", account=Account("alice", KeyLimits()))
        call.model = "mini"
        batches = handler.handle(None, call)  # type: ignore[arg-type]
        async for batch in batches:
            if batch == ["text"] and not until_the_end:
                break
        await batches.aclose()

    clock.now = 10**9
    asyncio.run(run())
    clock.now += 10**9
    recorder.close()
    entries = list(ledger.entries())
    assert [(one.model, one.key_name, one.nano_usd) for _, one in entries] == [
        ("mini", "alice", 2_000),
        ("idle", "", 2_000),
    ]
    assert ledger.lines(1) == {
        "machine_time": (2_000, 2_000),
        "input": (40, 0),
        "cache_read": (60, 0),
        "output": (20, 0),
    }
    assert [one.account for one in ledger.postings(1)][-1] == "owner:machine"
    assert ledger.database.query("SELECT sum(nano_usd) FROM ledger_postings") == [(0,)]


def test_no_frame_of_it_runs_per_batch() -> None:
    """After the start it returns the awaitables of the handler inside."""
    recorder = MachineRecorder(Ledger(Database(None)), MachineMeter(3_600_000))

    async def run() -> None:
        call = CallContext(request_id="r", account=Account("", KeyLimits()))
        batches = MachineHandler(OneRequest(NanoClock()), recorder).handle(None, call)  # type: ignore[arg-type]
        assert len([await anext(batches) for _ in range(2)]) == 2
        following = batches.__anext__()
        assert type(following).__name__ == "async_generator_asend"
        assert await following == ["text"]
        await batches.aclose()

    asyncio.run(run())
    recorder.close()
