"""Batches over a handler that is a function: no HTTP, no server, no model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace.inference.accounts import Account
from headrace.inference.admission import AdmissionGate
from headrace.inference.batches import batch_runner
from headrace.inference.batches.batch_runner import BatchRunner, LineAnswer, LineRequest
from headrace.inference.store_threads import StoreThreads
from headrace.storage.batches import Batches, Line, StoredBatch
from headrace.storage.database import Database
from headrace.storage.files import Files
from headrace.storage.keys import KeyLimits

EVERYBODY = Account("everybody", KeyLimits(None, None, None, None))


class Answers:
    """Answers lines with their own number; the line `busy` is asked to wait once, `wrong` is refused."""

    def __init__(self) -> None:
        self.asked: list[LineRequest] = []
        self.waited = False

    async def __call__(self, line: LineRequest) -> LineAnswer:
        self.asked.append(line)
        await asyncio.sleep(0)
        name = msgspec.json.decode(line.body)
        if name == "busy" and not self.waited:
            self.waited = True
            return LineAnswer(429, b"{}", pause_s=0.01)
        if name == "wrong":
            return LineAnswer(400, b'{"error":{}}')
        usage = {"prompt_tokens": 2, "completion_tokens": 3}
        return LineAnswer(200, json.dumps({"text": name, "usage": usage}).encode())


def added(batches: Batches, names: list[str]) -> StoredBatch:
    """A batch with a line for each name."""
    return batches.add(
        "",
        [Line(place, name, json.dumps(name).encode()) for place, name in enumerate(names, 1)],
        endpoint="/v1/anything",
        input_file_id="",
        completion_window="24h",
        window_s=3600,
        metadata=None,
        files_expire_after_s=None,
    )


def runner_of(
    answers: Answers,
    account_of: Callable[[str], Account | None],
    database: Database,
    threads: StoreThreads,
    when_keys_are_read: Callable[[], None],
) -> BatchRunner:
    async def read_keys() -> None:
        when_keys_are_read()

    gate = AdmissionGate(8, 1000, lambda: 0)
    return BatchRunner(
        answers,
        account_of,
        read_keys=read_keys,
        database=database,
        threads=threads,
        gate=gate,
        max_num_seqs=4,
    )


async def run(
    database: Database, answers: Answers, account_of: Callable[[str], Account | None], names: list[str]
) -> StoredBatch:
    batches = Batches(database)
    batch = added(batches, names)
    threads = StoreThreads()
    runner = runner_of(answers, account_of, database, threads, lambda: None)
    looked = 0
    async with asyncio.timeout(20), runner.serving():
        while batch.ended_s is None and (looked < 20 or account_of("") is not None):
            await asyncio.sleep(0.01)
            found = batches.get("", batch.id)
            assert found is not None
            batch, looked = found, looked + 1
    threads.close()
    return batch


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "store.sqlite3")


def test_a_handler_answers_the_lines(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "LOOK_BUSY_S", 0.01)
    answers = Answers()
    batch = asyncio.run(run(database, answers, lambda owner: EVERYBODY, ["a", "busy", "wrong", "b"]))
    assert (batch.status, batch.total, batch.completed, batch.failed) == ("completed", 4, 3, 1)
    assert {line.endpoint for line in answers.asked} == {"/v1/anything"}
    assert len(answers.asked) == 5, "a refusal that asks to wait is no answer: the line is asked again"
    assert len({line.request_id for line in answers.asked}) == 5
    assert batch.usage is not None and json.loads(batch.usage)["total_tokens"] == 15
    assert batch.output_file_id is not None
    written = b"".join(Files(database).parts(batch.output_file_id)).splitlines()
    assert [json.loads(line)["response"]["body"]["text"] for line in written] == ["a", "busy", "b"]


def test_without_its_key_a_batch_waits(database: Database) -> None:
    answers = Answers()
    batch = asyncio.run(run(database, answers, lambda owner: None, ["a"]))
    assert batch.status == "in_progress" and not answers.asked


def test_keys_are_read_where_there_are_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without batches reads them with requests alone, so that a new key is known to the next one."""
    monkeypatch.setattr(batch_runner, "LOOK_IDLE_S", 0.01)
    read: list[str] = []

    async def serve() -> None:
        batches, threads = Batches(database), StoreThreads()
        runner = runner_of(Answers(), lambda owner: EVERYBODY, database, threads, lambda: read.append("keys"))
        async with asyncio.timeout(20), runner.serving():
            await asyncio.sleep(0.2)
            assert not read
            added(batches, ["a"])
            while not read:
                await asyncio.sleep(0.01)
        threads.close()

    asyncio.run(serve())
