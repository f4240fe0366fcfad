"""Lines of batches that a provider's own batch answers: once, at its price, whatever happens in between."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fake import FakeModel
from fake_batches import FakeBatches, completion, message
from fake_provider import FakeProvider, running_provider
from in_process import Running, running_server, shipped_model_server

from headrace.config.providers import read_remote_model
from headrace.economy.budgets import Budgets
from headrace.economy.ledger import Ledger
from headrace.errors import StoreError, UsageError
from headrace.gateway import provider_jobs
from headrace.gateway.routes import read_routes
from headrace.providers.batches.unfolding import unfolded
from headrace.providers.target import read_providers
from headrace.storage.database import Database
from headrace.storage.provider_lines import ProviderLines

CHAT = "/v1/chat/completions"
PRICES = {
    "work/far-1": [
        {"input": 2, "output": 10},
        {"input": 1, "output": 5, "processing": "batch"},
    ]
}
LINE_NANO_USD = 5 * 1000 + 3 * 5000


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_jobs, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(provider_jobs, "LONGEST_PAUSE_S", 0.05)


class Shop:
    """A provider with batches, and servers over one store that have a model there."""

    def __init__(self, stack: ExitStack, store: Path) -> None:
        self._stack, self.store = stack, store
        self.batches = FakeBatches()
        self.provider: FakeProvider = stack.enter_context(running_provider(self.batches))

    def table(self, kind: str) -> dict[str, Any]:
        url = self.provider.url
        return {"kind": kind, "base_url": url, "api_key_env": "TEST_BATCH_KEY"}

    def server(self, kind: str = "openai", **flags: Any) -> Any:
        model = {"provider": "work", "model": "far-1", "batches": "provider"}
        local = FakeModel()
        local.engine.go.set()
        return running_server(
            local,
            remote={"far": model, **flags.pop("remote", {})},
            providers={"work": self.table(kind), **flags.pop("providers", {})},
            prices=PRICES,
            store=str(self.store),
            **flags,
        )

    def open(self, kind: str = "openai", **flags: Any) -> Running:
        return self._stack.enter_context(self.server(kind, **flags))

    def entries(self) -> list[Any]:
        return [entry for _, entry in Ledger(Database(self.store)).entries()]

    def holds(self) -> int:
        return int(Database(self.store).query("SELECT count(*) FROM holds")[0][0] or 0)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("TEST_BATCH_KEY", "sk-a-secret-of-the-batches")
    with ExitStack() as stack:
        yield Shop(stack, tmp_path / "store.sqlite3")


def begin(server: Running, contents: list[str], model: str = "far", **more: Any) -> Any:
    lines = [
        {
            "custom_id": content,
            "method": "POST",
            "url": CHAT,
            "body": {"model": model, "messages": [{"role": "user", "content": content}], **more},
        }
        for content in contents
    ]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    file = server.openai().files.create(file=("in.jsonl", text), purpose="batch")
    return server.openai().batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def wait_for(met: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + 20
    while not (found := met()):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    return found


def finish(server: Running, batch: Any) -> tuple[Any, dict[str, Any]]:
    """The batch when it has ended, and the response of each line, or the code of its error."""

    def ended() -> Any:
        found = server.openai().batches.retrieve(batch.id)
        return found if found.status in ("completed", "expired", "cancelled") else None

    found, replies = wait_for(ended), dict[str, Any]()
    for file_id in (found.output_file_id, found.error_file_id):
        for line in server.openai().files.content(file_id).text.splitlines() if file_id else ():
            reply = json.loads(line)
            replies[reply["custom_id"]] = reply["response"] or reply["error"]["code"]
    return found, replies


def text(reply: Any) -> str:
    return reply["body"]["choices"][0]["message"]["content"]


def test_lines_are_one_batch_at_its_price(shop: Shop) -> None:
    server = shop.open()
    batch, replies = finish(server, begin(server, ["a", "b", "c"], max_tokens=9))
    assert batch.status == "completed" and {name: text(one) for name, one in replies.items()} == {
        name: f"far: {name}" for name in "abc"
    }
    assert len(shop.batches.batches) == 1 and not shop.batches.single
    assert {body["model"] for body in shop.batches.bodies} == {"far-1"}
    entries = shop.entries()
    assert [(one.nano_usd, one.processing, one.status) for one in entries] == [
        (LINE_NANO_USD, "batch", "measured")
    ] * 3
    assert batch.usage.total_tokens == 24 and not shop.holds()
    secret = "sk-a-secret-of-the-batches"
    assert all(one.headers.get("authorization") == f"Bearer {secret}" for one in shop.provider.exchanges)
    assert secret.encode() not in shop.store.read_bytes()
    live = server.http().post(CHAT, json={"model": "far", "messages": [{"role": "user", "content": "now"}]})
    assert live.status_code == 200 and len(shop.batches.single) == 1, "a live request does not wait"


def test_messages_go_into_message_batches(shop: Shop) -> None:
    shop.batches.answer = message
    server = shop.open("anthropic")
    client = server.anthropic()
    requests: Any = [
        {
            "custom_id": name,
            "params": {"model": "far", "max_tokens": 9, "messages": [{"role": "user", "content": name}]},
        }
        for name in ("a", "b")
    ]
    batch = client.messages.batches.create(requests=requests)
    wait_for(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended")
    results = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
    assert {name: one.message.content[0].text for name, one in results.items()} == {  # type: ignore[union-attr]
        "a": "far: a",
        "b": "far: b",
    }
    assert len(shop.batches.batches) == 1 and not shop.batches.single
    assert [(one.nano_usd, one.processing) for one in shop.entries()] == [(LINE_NANO_USD, "batch")] * 2
    assert not shop.holds()


def test_an_error_is_that_of_its_line(shop: Shop) -> None:
    def answer(body: Any) -> Any:
        if body["messages"][-1]["content"] == "bad":
            return {"status": 400, "body": {"error": {"message": "too bad", "code": "invalid"}}}
        return completion(body)

    shop.batches.answer = answer
    server = shop.open()
    batch, replies = finish(server, begin(server, ["a", "bad", "b"]))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    assert replies["bad"]["status_code"] == 400 and "too bad" in json.dumps(replies["bad"])
    assert sorted(one.nano_usd for one in shop.entries()) == [0, LINE_NANO_USD, LINE_NANO_USD]
    assert not shop.batches.single and not shop.holds()


def test_a_line_that_expires_is_asked_again(shop: Shop) -> None:
    shop.batches.expires = 1
    server = shop.open()
    _, replies = finish(server, begin(server, ["a", "b"]))
    assert {name: text(one) for name, one in replies.items()} == {"a": "far: a", "b": "far: b"}
    assert [len(one["lines"]) for one in shop.batches.batches.values()] == [2, 1]
    assert sum(one.nano_usd for one in shop.entries()) == shop.batches.billed * LINE_NANO_USD
    assert not shop.holds()


def test_where_batches_are_refused_lines_go_by_themselves(shop: Shop) -> None:
    shop.batches.refuses = True
    server = shop.open()
    _, replies = finish(server, begin(server, ["a"]))
    assert text(replies["a"]) == "far: a" and len(shop.batches.single) == 1
    assert [one.processing for one in shop.entries() if one.nano_usd] == ["standard"]
    assert not shop.holds()


@pytest.mark.parametrize(("kind", "others"), [("openai", 0), ("openai", 250), ("anthropic", 250)])
def test_a_creation_whose_reply_is_lost_is_found_and_not_repeated(shop: Shop, kind: str, others: int) -> None:
    shop.batches.answer = message if kind == "anthropic" else completion
    shop.batches.lost, shop.batches.others = 1, others
    server = shop.open(kind)
    _, replies = finish(server, begin(server, ["a", "b"]))
    assert set(replies) == {"a", "b"} and len(shop.batches.batches) == 1
    assert len(shop.entries()) == 2


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_next_server_goes_on_where_one_stopped(shop: Shop, kind: str) -> None:
    shop.batches.answer = message if kind == "anthropic" else completion
    shop.batches.holds = True
    with shop.server(kind) as server:
        batch = begin(server, ["a", "b"])
        wait_for(lambda: shop.batches.batches)
        assert shop.holds() == 2
    shop.batches.holds = False
    server = shop.open(kind)
    _, replies = finish(server, batch)
    assert {name: text(one) for name, one in replies.items()} == {"a": "far: a", "b": "far: b"}
    assert len(shop.batches.batches) == 1 and len(shop.entries()) == 2 and not shop.holds()


def test_money_is_held_beyond_a_process_only_for_lines_that_are_kept(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may end before a line is kept, or between that and the holding of its money."""
    shop.batches.holds = True
    ended = list[int]()

    def end(*_: Any, **__: Any) -> None:
        ended.append(1)
        raise StoreError("the process ends here")

    def count(table: str) -> Any:
        return Database(shop.store).query(f"SELECT count(*) FROM {table}")[0][0]

    with monkeypatch.context() as patch:
        patch.setattr(ProviderLines, "wait", end)
        with shop.server() as server:
            batch = begin(server, ["a"])
            wait_for(lambda: ended)
            assert not count("holds WHERE holder = 'kept'")
    with monkeypatch.context() as patch:
        patch.setattr(Budgets, "keep", end)
        with shop.server():
            wait_for(lambda: count("provider_lines"))
    assert not count("holds WHERE holder = 'kept'")
    with shop.server():
        wait_for(lambda: count("holds WHERE holder = 'kept'"))
    shop.batches.holds = False
    _, replies = finish(shop.open(), batch)
    assert set(replies) == {"a"} and len(shop.batches.batches) == 1


def test_the_key_is_in_no_log(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.batches.refuses = True
    server = shop.open()
    finish(server, begin(server, ["a"]))
    assert "no batches with Bearer ***" in caplog.text and "sk-a-secret" not in caplog.text


def test_cancel_cancels_there_and_keeps_what_has_run(shop: Shop) -> None:
    shop.batches.holds = True
    server = shop.open()
    batch = begin(server, ["a", "b"])
    wait_for(lambda: shop.batches.batches)
    server.openai().batches.cancel(batch.id)
    found, replies = finish(server, batch)
    assert found.status == "cancelled" and shop.batches.cancelled == ["batch_0"]
    assert text(replies["a"]) == "far: a" and replies["b"] == "batch_cancelled"
    assert sum(one.nano_usd for one in shop.entries()) == LINE_NANO_USD and not shop.holds()


def test_a_budget_holds_for_lines_that_wait(shop: Shop) -> None:
    """Of four lines at 5 nano-dollars a token of output, one thousand each, a budget has room for two."""
    shop.batches.holds = True
    budgets = {"all": {"usd_per_month": 0.0115}}
    server = shop.open(budgets=budgets)
    batch = begin(server, ["a", "b", "c", "d"], max_tokens=1000)
    wait_for(lambda: shop.batches.batches)
    shop.batches.holds = False
    _, replies = finish(server, batch)
    done = [name for name, one in replies.items() if one["status_code"] == 200]
    assert len(done) == len(shop.batches.bodies) == 2, replies
    assert all("budget" in json.dumps(one) for name, one in replies.items() if name not in done)
    assert sum(one.nano_usd for one in shop.entries()) == 2 * LINE_NANO_USD and not shop.holds()


def test_hostile_results_end_the_lines_alone(shop: Shop) -> None:
    bodies: dict[str, Any] = {
        "null": None,
        "list": [],
        "text": "x",
        "no choices": {"choices": "none"},
        "usage": completion({"model": "m", "messages": [{"content": "u"}]})
        | {"usage": {"prompt_tokens": -1}},
    }
    shop.batches.answer = lambda body: {"status": 200, "body": bodies[body["messages"][-1]["content"]]}
    server = shop.open(remote={"one": {"targets": ["far"], "max_attempts": 1}})
    _, replies = finish(server, begin(server, list(bodies), model="one"))
    assert {name for name, one in replies.items() if one["status_code"] == 200} == {"usage"}
    assert not shop.batches.single and not shop.holds()


def test_this_server_is_a_provider_too(shop: Shop, tmp_path: Path) -> None:
    with shipped_model_server("{{ messages[0].content }}", store=str(tmp_path / "there.sqlite3")) as target:
        peer = {"kind": "headrace", "base_url": target.url + "/v1"}
        remote = {"peer": {"provider": "peer", "model": "novelette", "batches": "provider"}}
        server = shop.open(providers={"peer": peer}, remote=remote)
        ask = {"temperature": 0, "max_completion_tokens": 8}
        _, replies = finish(server, begin(server, ["It was", "a cold"], model="peer", **ask))
        there = target.openai().batches.list().data
        assert [one.request_counts.completed for one in there] == [2], "they were one batch there"
        for name, reply in replies.items():
            messages: Any = [{"role": "user", "content": name}]
            direct = target.openai().chat.completions.create(model="novelette", messages=messages, **ask)
            assert text(reply) == direct.choices[0].message.content


def test_a_batch_that_comes_back_ends(shop: Shop) -> None:
    """A provider whose address is this server's: its lines are refused there, and it ends."""
    with running_server(FakeModel(), store=str(shop.store.with_name("other.sqlite3"))) as other:
        url = other.url
    server = shop.open(
        providers={"back": {"kind": "headrace", "base_url": url + "/v1"}},
        remote={"loop": {"provider": "back", "model": "loop", "batches": "provider"}},
        port=int(url.rpartition(":")[2]),
    )
    _, replies = finish(server, begin(server, ["a"], model="loop"))
    assert replies["a"]["status_code"] >= 400, replies
    assert len(server.openai().batches.list().data) <= 4


def test_reasoning_and_calls_come_through() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    kinds = [
        json.loads(one.data)["type"]
        for one in unfolded("/responses", json.dumps({"status": "completed", "output": [item]}).encode())
    ]
    assert kinds == ["response.output_item.added", "response.output_item.done", "response.completed"]
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    found = unfolded("/messages", json.dumps({"content": [thinking], "stop_reason": "end_turn"}).encode())
    assert b"signature_delta" in b"".join(one.data for one in found)


def test_settings_say_what_cannot_be() -> None:
    provider = {"base_url": "http://127.0.0.1:1/v1", "kind": "vllm"}
    providers = read_providers({"work": provider})
    entry = {"provider": "work", "batches": "provider"}
    with pytest.raises(UsageError, match="no batches that are known"):
        read_routes({"far": entry}, providers)
    with pytest.raises(UsageError, match="batches have their own"):
        read_remote_model("far", entry | {"tier": "flex"}, "models")
    with pytest.raises(UsageError, match="batches needs provider"):
        read_remote_model("far", {"targets": ["a"], "batches": "provider"}, "models")
