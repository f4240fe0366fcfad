"""`headrace spend`: sums, checks, corrections, reconciliation, export."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from invocation import Outcome

from headrace.economy.entries import Entry
from headrace.economy.focus import COLUMNS
from headrace.economy.ledger import Ledger
from headrace.economy.rates import BillLine
from headrace.storage.database import Database

Inside = Callable[..., Outcome]
NOON = 1_795_176_000.0  # 2026-11-20 12:00 UTC
PRICES = ("--prices", '{"acme/*": {"input": 2, "output": 10}}')


def book(path: Path, request: str, lines: list[BillLine], **values: Any) -> int:
    named: dict[str, Any] = {"kind": "attempt", "status": "measured", "started_s": NOON, "booked_s": NOON}
    named |= {"request_id": request, "attempt": 1, "key_name": "alice", "route": "best", "billed": "yes"}
    named |= {"provider": "acme", "model": "big", "outcome": "ok", "price_source": "settings"}
    named["raw_usage"] = b'{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}'
    database = Database(path)
    number = Ledger(database).add(Entry(**(named | values)), lines)
    database.close()
    return number


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.sqlite3"
    book(path, "a", [BillLine("input", 100, 100_000), BillLine("output", 10, 100_000)])
    book(path, "b", [BillLine("input", 100, 100_000), BillLine("output", 10, 100_000)], key_name="bob")
    book(
        path,
        "c",
        [BillLine("estimate", 1, 5_000_000)],
        status="estimated",
        raw_usage=b"",
        started_s=NOON + 86_400,
    )
    book(path, "d", [BillLine("input", 7, 0)], status="unpriced", provider="odd", raw_usage=b"")
    book(path, "e", [], kind="lost", status="unpriced", outcome="lost")
    return path


def test_nothing_was_spent(inside: Inside, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "none"))
    assert inside("spend", *store).stdout == "nothing was spent\n"
    assert inside("spend", "check", *store).code == 0
    assert inside("spend", "rerate", *store).code == 0
    assert inside("spend", "export", *store).stdout.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_a_sum_of_classes_counts_no_attempt_twice(inside: Inside, store: Path) -> None:
    def total(by: str) -> list[str]:
        return inside("spend", "--by", by, "--store", str(store)).stdout.splitlines()[-1].split()

    assert total("class") == total("model") and total("model")[:2] == ["total", "4"]


def test_a_terminal_has_no_broken_lines(inside: Inside, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.spend.sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    lines = inside("spend", "--store", str(store)).stdout.splitlines()
    width = max(map(len, lines)) + 2  # of the columns without bars
    assert "█" not in "".join(lines)
    for columns, bar in ((width + 4, 0), (width + 5, 5), (width + 20, 20), (width + 99, 20)):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = inside("spend", "--store", str(store)).stdout.splitlines()
        assert max(line.count("█") for line in lines) == bar and max(map(len, lines)) <= columns


def test_sums(inside: Inside, store: Path) -> None:
    def rows(*flags: str) -> list[Any]:
        return json.loads(inside("spend", "--json", "--store", str(store), *flags).stdout)

    assert [(row["name"], row["usd"]) for row in rows()] == [("acme/big", "0.0054"), ("odd/big", "0")]
    acme, odd = rows()
    assert (acme["attempts"], acme["input_tokens"], acme["output_tokens"]) == (3, 200, 20)
    assert (acme["estimated_usd"], acme["lost"], odd["unpriced"]) == ("0.005", 1, 1)
    assert {row["name"]: row["usd"] for row in rows("--by", "key")} == {"alice": "0.0052", "bob": "0.0002"}
    assert [row["name"] for row in rows("--by", "day")] == ["2026-11-20", "2026-11-21"]
    assert [row["usd"] for row in rows("--since", "2026-11-21")] == ["0.005"]
    assert {row["name"] for row in rows("--by", "class")} == {"input", "output", "estimate"}
    for by in ("provider", "route", "status"):
        assert sum(float(row["usd"]) for row in rows("--by", by)) == pytest.approx(0.0054)
    table = inside("spend", "--store", str(store), "--by", "key").stdout
    assert "$0.0052" in table and "total" in table and "█" in table
    found = list(csv.DictReader(io.StringIO(inside("spend", "--csv", "--store", str(store)).stdout)))
    assert found[0]["model"] == "acme/big" and found[0]["usd"] == "0.0054"


def test_check_finds_what_is_off(inside: Inside, store: Path) -> None:
    flags = ("--store", str(store))
    good = inside("spend", "check", *flags)
    assert good.code == 0 and "all adds up" in good.stdout
    assert "1 attempts are unpriced" in good.stdout and "1 attempts are estimated" in good.stdout
    with sqlite3.connect(store) as vandal:
        vandal.execute("DROP TRIGGER ledger_postings_no_update")
        vandal.execute("UPDATE ledger_postings SET nano_usd = nano_usd + 1 WHERE entry = 1 AND line = 0")
        vandal.execute("INSERT INTO budget_totals VALUES ('team', '2026-11', 5)")
        vandal.execute("INSERT INTO hold_shares VALUES (77, 'team', '2026-11', 5)")
    vandal.close()
    bad = inside("spend", "check", *flags)
    assert bad.code == 1
    for said in (
        "ledger_postings_no_update",
        "entry 1 sum to 1",
        "entry 1 says 200,000",
        "'team'",
        "hold 77",
    ):
        assert said in bad.stdout
    assert len(json.loads(inside("spend", "check", "--json", *flags).stdout)["problems"]) == 5


def test_check_bills_again(inside: Inside, tmp_path: Path) -> None:
    pytest.importorskip("genai_prices")
    from headrace.economy.price_list import PriceList

    path, version = tmp_path / "store", PriceList().version
    values: dict[str, Any] = {"provider": "openai", "model": "gpt-4o", "price_source": version}
    book(path, "right", [BillLine("input", 100, 250_000), BillLine("output", 10, 100_000)], **values)
    assert inside("spend", "check", "--store", str(path)).code == 0
    book(path, "wrong", [BillLine("input", 100, 250_000), BillLine("output", 10, 100_001)], **values)
    bad = inside("spend", "check", "--store", str(path))
    assert bad.code == 1 and "entry 2 says" in bad.stdout


def test_bills_anew_as_corrections(inside: Inside, store: Path) -> None:
    flags = ("--store", str(store), *PRICES)
    dry = inside("spend", "rerate", *flags)
    assert "2 entries cost $0.00020 more" in dry.stdout and "nothing is booked" in dry.stdout
    assert "$0.0054" in inside("spend", *flags).stdout
    assert len(json.loads(inside("spend", "rerate", "--write", "--json", *flags).stdout)) == 2
    assert "$0.0056" in inside("spend", *flags).stdout
    assert "no entry costs anything else" in inside("spend", "rerate", *flags).stdout
    assert inside("spend", "check", *flags).code == 0
    back = ("--prices", '{"acme/*": {"input": 1, "output": 10}}', "--store", str(store))
    inside("spend", "rerate", "--write", *back)
    assert "$0.0054" in inside("spend", *back).stdout


def test_a_price_that_comes_later_bills_what_was_unpriced(inside: Inside, tmp_path: Path) -> None:
    path = tmp_path / "store"
    book(
        path, "a", [BillLine("input", 100, 0), BillLine("output", 10, 0)], status="unpriced", price_source=""
    )
    flags = ("--store", str(path), *PRICES)
    inside("spend", "rerate", "--write", *flags)
    [row] = json.loads(inside("spend", "--json", *flags).stdout)
    assert (row["usd"], row["unpriced"], row["input_tokens"]) == ("0.0003", 0, 100)
    assert inside("spend", "check", *flags).code == 0


def test_reconciles_with_a_file(inside: Inside, store: Path, tmp_path: Path) -> None:
    statement = tmp_path / "invoice.csv"
    statement.write_text(
        "day,model,usd\n2026-11-20,big,0.0004\n2026-11-21,big,0.0049\n2026-11-21,small,0.25\n"
    )
    flags = ("--store", str(store), "--provider", "acme", "--json")
    found = json.loads(inside("spend", "reconcile", str(statement), *flags).stdout)
    assert [(one["day"], one["model"], one["nano_usd"]) for one in found] == [
        ("2026-11-20", "big", 0),
        ("2026-11-21", "big", -100_000),
        ("2026-11-21", "small", 250_000_000),
    ]
    assert "2 entries" in inside("spend", "reconcile", str(statement), "--write", *flags).stderr
    again = json.loads(inside("spend", "reconcile", str(statement), *flags).stdout)
    assert all(one["nano_usd"] == 0 for one in again)
    assert inside("spend", "check", "--store", str(store)).code == 0
    table = inside("spend", "reconcile", str(statement), "--store", str(store), "--provider", "acme").stdout
    assert "unexplained: $0.00" in table


REPLIES: dict[str, list[Any]] = {
    "/v1/organization/costs": [
        {
            "data": [
                {
                    "start_time": 1_795_132_800,
                    "end_time": 1_795_219_200,
                    "results": [
                        {"amount": {"value": 0.06, "currency": "usd"}, "line_item": "gpt-4o, input"},
                        {"amount": {"value": 0.04, "currency": "usd"}, "line_item": "gpt-4o, output"},
                    ],
                }
            ],
            "has_more": True,
            "next_page": "second",
        },
        {"data": [], "has_more": False, "next_page": None},
    ],
    "/v1/organizations/cost_report": [
        {
            "data": [
                {
                    "starting_at": "2026-11-20T00:00:00Z",
                    "ending_at": "2026-11-21T00:00:00Z",
                    "results": [{"amount": "123.45", "currency": "USD", "model": "claude-haiku-4-5"}],
                }
            ],
            "has_more": False,
            "next_page": None,
        }
    ],
}


@pytest.fixture
def provider() -> Iterator[tuple[str, list[Any]]]:
    """A provider's address, and the requests that it got."""
    seen: list[Any] = []

    class Report(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            seen.append((self.path, dict(self.headers)))
            if path.startswith("/redirect"):
                self.send_response(302)
                self.send_header("location", "/v1/organization/costs")
                self.end_headers()
                return
            body = json.dumps(REPLIES[path]["page=" in self.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Report)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_reconciles_with_providers(
    inside: Inside, tmp_path: Path, provider: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = provider
    path = tmp_path / "store"
    book(path, "a", [BillLine("input", 1, 90_000_000)], provider="openai", model="gpt-4o")
    flags = ("--store", str(path), "--since", "2026-11-20", "--until", "2026-11-20", "--url", url, "--json")
    nameless = inside("spend", "reconcile", "openai", *flags)
    assert nameless.code == 2 and "OPENAI_ADMIN_KEY" in nameless.stderr
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "canary-1")
    monkeypatch.setenv("ANTHROPIC_ADMIN_KEY", "canary-2")
    [one] = json.loads(inside("spend", "reconcile", "openai", *flags).stdout)
    assert (one["model"], one["billed_nano_usd"], one["nano_usd"]) == ("gpt-4o", 100_000_000, 10_000_000)
    assert "start_time=1795132800" in seen[0][0] and seen[0][1]["Authorization"] == "Bearer canary-1"
    assert "page=second" in seen[1][0]
    [other] = json.loads(inside("spend", "reconcile", "anthropic", *flags).stdout)
    assert (other["model"], other["billed_nano_usd"]) == ("claude-haiku-4-5", 1_234_500_000)
    moved = inside("spend", "reconcile", "openai", *flags[:-3], "--url", f"{url}/redirect")
    assert moved.code == 1 and "status 302" in moved.stderr and "canary" not in moved.stderr


def test_export_has_the_columns_of_focus(inside: Inside, store: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(inside("spend", "export", "--store", str(store)).stdout)))
    assert tuple(rows[0]) == COLUMNS
    assert sum(float(row["BilledCost"]) for row in rows) == pytest.approx(0.0054)
    row = next(one for one in rows if one["SkuId"] == "acme/big:input" and one["SubAccountId"] == "bob")
    assert (
        row["ChargePeriodStart"] == "2026-11-20T00:00:00Z"
        and row["BillingPeriodEnd"] == "2026-12-01T00:00:00Z"
    )
    assert (row["BilledCost"], row["ConsumedQuantity"], row["ConsumedUnit"]) == ("0.0001", "100", "Tokens")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "--since is 'yesterday'"),
        (("--since", "2026-02-30"), "--since is"),
        (("check", "openai"), "takes no 'openai'"),
        (("reconcile",), "needs a SOURCE"),
        (("reconcile", "x.csv"), "needs --provider"),
        (("reconcile", "x.csv", "--provider", "a"), "x.csv cannot be read: No such file"),
        (("--write",), "--write has no effect on spend show, which takes --by"),
        (("--provider", "openai"), "--provider has no effect"),
        (("check", "--by", "model"), "--by has no effect on spend check"),
        (("rerate", "--until", "2026-11-11"), "--until has no effect on spend rerate"),
        (("export", "--json"), "--json has no effect"),
        (("reconcile", "x.csv", "--provider", "a", "--url", "http://x"), "--url has no effect"),
        (("reconcile", "openai", "--provider", "a"), "--provider has no effect on spend reconcile openai"),
        (("--prices", '{"a": 1}'), "provider/model"),
        (("check", "--budgets", '{"a": 1}'), "is a table"),
    ],
)
def test_wrong_use(inside: Inside, store: Path, arguments: tuple[str, ...], said: str) -> None:
    found = inside("spend", *arguments, "--store", str(store))
    assert found.code == 2 and said in found.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "its columns are none"),
        ("day\n2026-11-20\n", "its columns are day)"),
        ("x,usd\n1,2\n", "its columns are x, usd)"),
        ("day,usd\n2026-11-20,1\nmonday,1\n", "row 3: time data 'monday'"),
        ("day,usd\n2026-11-20,much\n", "row 2: 'much' is no amount"),
        ("day,usd\n2026-11-20\n", "row 2 has 1 values, row 1 has 2"),
    ],
)
def test_a_file_that_is_no_statement(
    inside: Inside, store: Path, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "x.csv").write_text(text)
    found = inside("spend", "reconcile", str(tmp_path / "x.csv"), "--provider", "a", "--store", str(store))
    assert (found.code, found.stdout) == (2, "") and said in found.stderr
