"""Batches of messages through the official client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from fake import FakeEngine, FakeModel
from in_process import Running

Serve = Callable[..., Running]


def message(custom_id: str, **more: Any) -> dict[str, Any]:
    params = {"model": "fake/model", "max_tokens": 5, "messages": [{"role": "user", "content": custom_id}]}
    return {"custom_id": custom_id, "params": params | more}


def finish(client: anthropic.Anthropic, batch: Any) -> Any:
    """Wait until the batch has ended."""
    until_s = time.monotonic() + 20
    while batch.processing_status != "ended":
        assert time.monotonic() < until_s, batch
        time.sleep(0.02)
        batch = client.messages.batches.retrieve(batch.id)
    return batch


@pytest.fixture
def start(serve: Serve, tmp_path) -> Callable[..., Running]:
    """Servers of one store."""
    return lambda model=None, **flags: serve(model or FakeModel(), store=tmp_path / "store.sqlite3", **flags)


def test_each_message_has_its_result_and_a_wrong_one_fails_alone(start: Serve) -> None:
    client = start().anthropic()
    requests = [*(message(str(n)) for n in range(8)), message("wrong", max_tokens=-1)]
    batch = client.messages.batches.create(requests=requests)
    assert (batch.type, batch.request_counts.processing) == ("message_batch", 9)
    assert batch.id.startswith("msgbatch_") and (batch.expires_at - batch.created_at).days == 1
    if batch.processing_status != "ended":
        with pytest.raises(anthropic.AnthropicError):
            client.messages.batches.results(batch.id)
    batch = finish(client, batch)
    counts = batch.request_counts
    assert (counts.processing, counts.succeeded, counts.errored) == (0, 8, 1)
    results = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
    assert results.keys() == {one["custom_id"] for one in requests}
    wrong = results.pop("wrong")
    assert wrong.type == "errored" and wrong.error.error.type == "invalid_request_error"
    assert "max_tokens" in wrong.error.error.message
    direct = client.messages.create(**message("3")["params"])
    assert results["3"].type == "succeeded" and results["3"].message.content == direct.content
    assert results["3"].message.usage.output_tokens == 5


def test_cancelled_messages_say_so(start: Serve) -> None:
    engine = FakeEngine()
    engine.go.clear()
    model = FakeModel(engine=engine)
    client = start(model).anthropic()
    batch = client.messages.batches.create(requests=[message(str(n)) for n in range(40)])
    batch = client.messages.batches.cancel(batch.id)
    assert batch.processing_status in ("canceling", "ended") and batch.cancel_initiated_at is not None
    engine.go.set()
    batch = finish(client, batch)
    counts = batch.request_counts
    assert counts.canceled > 0 and counts.canceled + counts.succeeded == 40
    kinds = [one.result.type for one in client.messages.batches.results(batch.id)]
    assert (kinds.count("canceled"), kinds.count("succeeded")) == (counts.canceled, counts.succeeded)
    with pytest.raises(anthropic.BadRequestError, match="has ended"):
        client.messages.batches.cancel(batch.id)


def test_pages_and_whose_batches_they_are(start: Serve) -> None:
    server = start()
    client = server.anthropic()
    ids = [client.messages.batches.create(requests=[message("a")]).id for _ in range(5)][::-1]
    assert [one.id for one in client.messages.batches.list(limit=2)] == ids
    page = client.messages.batches.list(before_id=ids[3], limit=2)
    assert ([one.id for one in page.data], page.has_more) == (ids[1:3], True)
    page = client.messages.batches.list(after_id=ids[0], before_id=ids[3], limit=2)
    assert ([one.id for one in page.data], page.has_more) == (ids[1:3], False)
    page = client.messages.batches.list(after_id=ids[0], before_id=ids[4], limit=2)
    assert ([one.id for one in page.data], page.has_more) == (ids[2:4], True)
    openai = server.openai()
    assert not openai.batches.list().data
    for ask in (
        lambda: client.messages.batches.retrieve("batch_1"),
        lambda: client.messages.batches.cancel("msgbatch_1"),
    ):
        with pytest.raises(anthropic.NotFoundError):
            ask()
    reply = server.http().get(f"/v1/batches/{ids[0]}")
    assert reply.status_code == 404


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "requests"),
        ([message("a"), message("a")], "two requests have the custom_id 'a'"),
        ([message("a", stream=True)], "stream makes no sense in a batch"),
        ([message("a b")], "custom_id"),
        ([{"custom_id": "a"}], "params"),
    ],
)
def test_what_is_refused_at_once(start: Serve, requests: list[Any], said: str) -> None:
    client = start().anthropic()
    with pytest.raises(anthropic.BadRequestError, match=said):
        client.messages.batches.create(requests=requests)
    assert not client.messages.batches.list().data


def test_a_batch_that_has_ended_can_be_deleted(start: Serve) -> None:
    engine = FakeEngine()
    engine.go.clear()
    client = start(FakeModel(engine=engine)).anthropic()
    batch = client.messages.batches.create(requests=[message("a")])
    with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
        client.messages.batches.delete(batch.id)
    engine.go.set()
    finish(client, batch)
    deleted = client.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)
