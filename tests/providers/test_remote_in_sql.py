"""What SQL asks of a remote model: bounds and prices are known before anything is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_provider import HELLO, Gateway, say, send, usage

pytest.importorskip("duckdb", reason="needs headrace[data]")

PRICES = {"work/far-1": {"input": 2, "output": 10}}  # dollars per million tokens
SQL = "SELECT id, ai('Answer:', body, model := 'far', max_tokens := 50) AS a FROM mails"
NAIVE = "die Straße ﷺ ﷺ ﷺ"  # what some tokenizers write out before they cut


@pytest.fixture
def more(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "mails.csv").write_text(f"id,body\n1,hello\n2,{NAIVE}\n3,hello\n")
    return {
        "datasets": {"mails": {"from": f"file:{tmp_path}/mails.csv"}},
        "store": str(tmp_path / "store.sqlite3"),
    }


def explained(server: Any, sql: str) -> dict[str, Any]:
    reply = server.http().post("/v1/sql/explain", json={"sql": sql})
    assert reply.status_code == 200, reply.text
    [found] = reply.json()["models"]
    return found


def test_bounds_and_money_are_told_first(gateway: Callable[..., Gateway], more: dict[str, Any]) -> None:
    server, provider = gateway(say(*HELLO, usage(12, 2)), prices=PRICES, **more)
    cost = explained(server, SQL)
    assert (cost["rows"], cost["requests"], cost["exact"], cost["prompt_exact"]) == (2, 2, True, False)
    texts = sum(len(f"Answer:\n\n{body}".encode()) for body in ("hello", NAIVE))
    assert cost["estimated_prompt_tokens"] < texts < cost["prompt_tokens"]
    assert cost["max_output_tokens"] == 100
    assert cost["usd"] == pytest.approx((2 * cost["prompt_tokens"] + 10 * 100) / 1e6)
    assert not provider.exchanges
    reply = server.http().post("/v1/sql", json={"sql": SQL, "max_cost": cost["usd"]})
    assert reply.status_code == 200, reply.text
    assert [row["a"] for row in reply.json()] == ["Hello"] * 3
    assert "priority: has no effect" in reply.headers["x-headrace-warnings"]
    used = json.loads(reply.headers["x-headrace-ai"])
    assert used["prompt_tokens"] == 24 <= cost["prompt_tokens"]
    assert len(provider.exchanges) == 2


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"max_cost": 0.001}, "predicted to cost up to .* max_cost allows .0.001:"),
        ({"max_tokens": 150}, "up to [0-9,]+ prompt tokens .* max_tokens allows 150"),
        ({"max_ai_rows": 1}, "max_ai_rows allows 1"),
    ],
)
def test_limits_refuse_before_anything_is_sent(
    gateway: Callable[..., Gateway], more: dict[str, Any], wishes: dict[str, Any], words: str
) -> None:
    server, provider = gateway(say(*HELLO, usage()), prices=PRICES, **more)
    reply = server.http().post("/v1/sql", json={"sql": SQL} | wishes)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert re.search(words, error["message"]), error
    assert not provider.exchanges


def test_a_price_that_is_not_known(gateway: Callable[..., Gateway], more: dict[str, Any]) -> None:
    server, provider = gateway(say(*HELLO, usage()), **more)
    cost = explained(server, SQL)
    assert cost["usd"] is None
    assert 'set [prices."work/far-1"]' in cost["unpriced"]
    reply = server.http().post("/v1/sql", json={"sql": SQL, "max_cost": 1})
    assert reply.status_code == 400
    assert "max_cost cannot be kept" in reply.json()["error"]["message"]
    assert not provider.exchanges
    assert server.http().post("/v1/sql", json={"sql": SQL}).status_code == 200


def test_other_functions_say_that_they_need_a_model_of_this_machine(
    gateway: Callable[..., Gateway], more: dict[str, Any]
) -> None:
    server, provider = gateway(say(*HELLO, usage()), prices=PRICES, **more)
    for call in ("ai_agg(body, 'Say:', model := 'far')", "ai_filter('Is it?', body, model := 'far')"):
        reply = server.http().post("/v1/sql", json={"sql": f"SELECT {call} FROM mails"})
        assert reply.status_code == 400, reply.text
        assert "far is a remote model" in reply.json()["error"]["message"]
    for call in ("classify(body, ['a', 'b'], model := 'far')", "embed(body, model := 'far')"):
        reply = server.http().post("/v1/sql", json={"sql": f"SELECT {call} FROM mails"})
        assert reply.status_code == 404, reply.text
        assert "'far' is a remote model: this needs a model of this machine" in reply.text
    assert not provider.exchanges


def test_a_remote_reranker_orders_rows(gateway: Callable[..., Gateway], more: dict[str, Any]) -> None:
    results = [{"index": 0, "relevance_score": 0.1}, {"index": 1, "relevance_score": 0.9}]
    body = json.dumps({"results": results, "usage": {"total_tokens": 30}}).encode()
    reply = send(body, content_type="application/json")
    server, provider = gateway(reply, provider={"kind": "vllm"}, prices=PRICES, **more)
    sql = "SELECT id, rerank('late refund', body, model := 'far') AS s FROM mails ORDER BY s DESC, id"
    cost = explained(server, sql)
    assert cost["rows"] == 2 and cost["usd"] == pytest.approx(2 * cost["prompt_tokens"] / 1e6, rel=1e-3)
    assert not provider.exchanges
    rows = server.http().post("/v1/sql", json={"sql": sql, "max_cost": cost["usd"]})
    assert rows.status_code == 200, rows.text
    (exchange,) = provider.exchanges
    scores = dict(zip(exchange.body["documents"], (0.1, 0.9), strict=True))
    assert {row["id"]: row["s"] for row in rows.json()} == pytest.approx(
        {1: scores["hello"], 2: scores[NAIVE], 3: scores["hello"]}
    )
    assert json.loads(rows.headers["x-headrace-ai"])["prompt_tokens"] == 30 <= cost["prompt_tokens"]
    refused = server.http().post("/v1/sql", json={"sql": sql.replace("'far'", "'nowhere'")})
    assert refused.status_code in (400, 404) and "nowhere" in refused.text
