"""Statements of providers and settings with amounts that cannot be: told by name, and nothing is booked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recording import recorder

from headrace.economy import cost_reports
from headrace.economy.cost_reports import ReportUnavailable, fetch_costs
from headrace.economy.money import MAX_NANO, nano_of
from headrace.economy.prices import PriceBook
from headrace.economy.reconcile import Billed, compare, read_statement
from headrace.errors import UsageError

HEAD = "day,usd,model\n"
DAY = "2026-11-28"
JSON = '{{"data": [{{"start_time": {}, "results": [{{"amount": {{"value": {}, "currency": "usd"}}}}]}}]{}}}'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", HEAD + f"{DAY},1e999999,x\n", "no amount"),
        ("a.csv", HEAD + f"{DAY},nan,x\n", "no amount"),
        ("a.csv", HEAD + f"{DAY},1\n{DAY},2,x\n", "row 2 has 2 values, row 1 has 3"),
        ("a.csv", HEAD + f"{DAY},1,234.50,x\n", "row 2 has 4 values, row 1 has 3"),
        ("a.csv", "", "its columns are none"),
        ("a.csv", "day,model\n", "its columns are day, model"),
        ("a.csv", f"day,usd,currency\n{DAY},1,EUR\n", "EUR"),
        ("a.csv", f"ChargePeriodStart,BilledCost,BillingCurrency\n{DAY}T00:00:00Z,1,EUR\n", "EUR"),
        ("a.json", "[" * 100_000, "recursion"),
        ("a.json", "[]", "no statement"),
        ("a.json", JSON.format("1e400", 1, ""), "out of range"),
        ("a.json", JSON.format(1_795_800_000, '"1e999999"', ""), "no amount"),
        ("a.json", JSON.format(1_795_800_000, 1, ', "has_more": true'), "one page of several"),
    ],
)
def test_a_file_that_is_no_statement(tmp_path: Path, name: str, content: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match="no statement of costs") as caught:
        read_statement(path)
    assert said in caught.value.message


def test_lines_within_quotes_stay_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEAD + f'{DAY},1,"big\nmodel"\n\n{DAY},2,small\n')
    assert [(one.model, one.nano_usd) for one in read_statement(path)] == [
        ("big\nmodel", 10**9),
        ("small", 2 * 10**9),
    ]


def test_sums_that_no_ledger_can_hold() -> None:
    spend = recorder(None)
    billed = [Billed(day=DAY, model="x", nano_usd=MAX_NANO)] * 10
    with pytest.raises(UsageError, match="more than"):
        compare(spend.ledger, "acme", billed, DAY, DAY)


@pytest.mark.parametrize(
    "page",
    [
        {"data": [{"start_time": float("inf"), "results": [{"amount": {"value": 1, "currency": "usd"}}]}]},
        {"data": [{"start_time": 1, "results": [{"amount": {"value": "1e999999", "currency": "usd"}}]}]},
    ],
)
def test_a_report_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, page: Any) -> None:
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "key")
    monkeypatch.setattr(cost_reports, "_page", lambda url, headers: page)
    with pytest.raises(ReportUnavailable, match="cannot be read"):
        fetch_costs("openai", DAY, DAY)


def test_a_report_is_not_read_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "key")
    with pytest.raises(UsageError, match="http or https"):
        fetch_costs("openai", DAY, DAY, "file:///etc")


@pytest.mark.parametrize("value", ["1e999999", "-1e999999", 10**400, 1e308, "sNaN", "1000000000.1"])
def test_amounts_that_are_none(value: Any) -> None:
    with pytest.raises(ValueError):
        nano_of(value)
    assert nano_of("1000000000") == MAX_NANO and nano_of("1e-999999") == 0


@pytest.mark.parametrize("value", [1e308, 999_999_999_999_999_999_999, 1_000_001, "1e999999", float("nan")])
def test_prices_that_no_ledger_can_hold(value: Any) -> None:
    with pytest.raises(UsageError, match="it must be dollars per"):
        PriceBook({"acme/big": {"input": value, "output": 1}})
