"""A recorder over a store for tests, with prices that are easy to add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.economy.budget_settings import read_budgets
from headrace.economy.prices import PriceBook
from headrace.economy.recorder import LedgerRecorder
from headrace.inference.attempts import Attempt, Hold, TokenCounts
from headrace.storage.database import Database

PRICES = {"acme/*": {"input": 1, "output": 10}}  # 1,000 and 10,000 nano-dollars a token
NOON = 1_795_176_000.0  # 2026-11-20 12:00 UTC


class FakeClock:
    """A clock that tests set."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def recorder(
    path: Path | None,
    budgets: dict[str, Any] | None = None,
    prices: dict[str, Any] | None = None,
    **options: Any,
) -> LedgerRecorder:
    book = PriceBook(PRICES if prices is None else prices)
    return LedgerRecorder(Database(path), book, read_budgets(budgets), **options)


def usage(given: int, output: int) -> bytes:
    total = given + output
    return json.dumps({"prompt_tokens": given, "completion_tokens": output, "total_tokens": total}).encode()


def attempt(request_id: str, number: int = 1, **values: Any) -> Attempt:
    named: dict[str, Any] = {
        "kind": "first",
        "account": "alice",
        "target": "far",
        "provider": "acme",
        "provider_model": "big",
        "started_unix_s": NOON,
        "elapsed_s": 1.0,
        "raw_usage": usage(100, 10),
    }
    return Attempt(request_id=request_id, number=number, **(named | values))


async def reserve(spend: LedgerRecorder, given: int = 100, output: int = 10, **values: Any) -> Hold:
    named = {"account": "alice", "target": "far", "provider": "acme", "model": "big"} | values
    return await spend.reserve(most=TokenCounts(input=given, output=output), **named)
