"""GET /v1/organization/costs: OpenAI's shape over the ledger, for administrators."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.economy.entries import Entry
from headrace.economy.ledger import Ledger
from headrace.economy.rates import BillLine
from headrace.storage.database import Database

DAY = 1_795_132_800  # 2026-11-20
COSTS = "/v1/organization/costs"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    database = Database(tmp_path / "store")
    for place, (key, route, day) in enumerate(
        [("alice", "best", 0), ("bob", "best", 0), ("alice", "far", 2)]
    ):
        entry = Entry(
            kind="attempt",
            status="measured",
            started_s=DAY + day * 86_400.0,
            booked_s=DAY,
            request_id=str(place),
            key_name=key,
            route=route,
            provider="acme",
            model="big",
        )
        Ledger(database).add(entry, [BillLine("input", 10, 10_000_000), BillLine("output", 1, 50_000_000)])
    database.close()
    return tmp_path / "store"


def test_days_and_groups(serve: Any, store: Path) -> None:
    http = serve(store=str(store)).http()

    def get(**query: Any) -> Any:
        reply = http.get(COSTS, params={"start_time": DAY, **query})
        assert reply.status_code == 200, reply.text
        return reply.json()

    page = get()
    assert page["object"] == "page" and not page["has_more"]
    assert [bucket["start_time"] for bucket in page["data"]] == [DAY, DAY + 86_400, DAY + 2 * 86_400]
    first, empty, _ = page["data"]
    assert first["results"] == [
        {
            "object": "organization.costs.result",
            "amount": {"value": 0.12, "currency": "usd"},
            "line_item": None,
            "project_id": None,
            "api_key_id": None,
            "quantity": None,
        }
    ]
    assert empty["results"] == []
    items = get(group_by=["line_item", "api_key_id"], limit=1)["data"][0]["results"]
    assert {(one["line_item"], one["api_key_id"]): one["amount"]["value"] for one in items} == {
        ("acme/big, input", "alice"): 0.01,
        ("acme/big, output", "alice"): 0.05,
        ("acme/big, input", "bob"): 0.01,
        ("acme/big, output", "bob"): 0.05,
    }
    assert [one["quantity"] for one in items if one["line_item"] == "acme/big, input"] == [10, 10]
    only = get(project_ids=["far"], group_by="project_id")["data"]
    assert [len(bucket["results"]) for bucket in only] == [0, 0, 1]
    assert only[2]["results"][0]["project_id"] == "far"


def test_pages(serve: Any, store: Path) -> None:
    http = serve(store=str(store)).http()
    starts, page = [], None
    for _ in range(5):
        query = {"start_time": DAY, "limit": 1} | ({} if page is None else {"page": page})
        reply = http.get(COSTS, params=query).json()
        starts += [bucket["start_time"] for bucket in reply["data"]]
        page = reply["next_page"]
        if not reply["has_more"]:
            break
    assert starts == [DAY, DAY + 86_400, DAY + 2 * 86_400]


def test_only_administrators_see_it(serve: Any, store: Path) -> None:
    server = serve(store=str(store), api_key="user", admin_api_key="boss")
    for key, status in (("user", 403), ("boss", 200), ("nobody", 401)):
        reply = server.http(headers={"authorization": f"Bearer {key}"}).get(COSTS, params={"start_time": DAY})
        assert reply.status_code == status


@pytest.mark.parametrize(
    "query", [{}, {"start_time": -1}, {"start_time": 0, "limit": 181}, {"start_time": 0, "group_by": "moon"}]
)
def test_wrong_queries(serve: Any, query: dict[str, Any]) -> None:
    reply = serve().http().get(COSTS, params=query)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in ("start_time", "limit", "group_by", "group_by[0]")


def test_the_machine_is_booked(serve: Any, tmp_path: Path) -> None:
    server = serve(store=str(tmp_path / "store"), node_usd_per_hour=3.6)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    server.http().post("/v1/chat/completions", json=body).raise_for_status()
    database = Database(tmp_path / "store")
    for _ in range(200):  # it is written by a thread
        is_made = (tmp_path / "store-wal").exists()  # before, each would keep the other from making it
        entries = list(Ledger(database).entries()) if is_made else []
        if entries:
            break
        time.sleep(0.02)
    database.close()
    [(_, entry)] = entries
    assert (entry.kind, entry.model) == ("machine", "fake/model") and entry.nano_usd > 0
