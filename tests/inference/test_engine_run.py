"""What waits for the consumer of a stream: bounded for a slow one, no reason to fail a fast one."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake import FakeEngine, FakeModel
from in_process import running_server

from headrace.engine.request import Delta, EngineRequest, RequestFailed, RequestHandle
from headrace.errors import Overloaded, TargetUnreachable
from headrace.inference import engine_run, local_handler
from headrace.inference.engine_run import EngineRun, SlowReader
from headrace.inference.event_bridge import EventBridge
from headrace.inference.handler import open_stream
from headrace.inference.keywords import new_call
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import CompletionRequest
from headrace.sampling.params import SamplingParams
from headrace.telemetry.request_metrics import ModelMetrics


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x" * 3000, "echo": True, "logprobs": 1},  # one event beyond all bounds
        {"prompt": ["x"] * 900},  # all of one step arrives at once
    ],
)
def test_large_events_do_not_fail_a_client_that_reads(body: dict[str, Any]) -> None:
    with running_server(FakeModel()) as server:
        reply = server.http().post("/v1/completions", json={"max_tokens": 3, **body})
        assert reply.status_code == 200, reply.text[:300]


def submitted() -> tuple[EngineRun, Any]:
    """The run of a request, and what the engine calls with its events."""
    sinks: list[Any] = []

    def submit(request: EngineRequest, sink: Any) -> RequestHandle:
        sinks.append(sink)
        return RequestHandle("r", lambda _: None, lambda *_: None)

    engine: Any = SimpleNamespace(submit=submit)
    run = EngineRun(engine, EventBridge(asyncio.get_running_loop()), ModelMetrics(), new_call(), 1)
    run.submit([EngineRequest(prompt=(1,), params=SamplingParams())])
    return run, sinks[0]


def test_an_engine_that_cannot_be_paused_fails_a_slow_reader() -> None:
    async def scene() -> None:
        run, sink = submitted()
        for _ in range(3):
            sink([Delta(0, "x" * engine_run.LIMIT_BYTES, (1,))])
            await asyncio.sleep(0)
        assert len(await run.next()) == 3, "the reader is not late yet"
        for _ in range(3):
            sink([Delta(0, "x" * engine_run.LIMIT_BYTES, (1,))])
            await asyncio.sleep(0.02)
        assert await run.next()
        with pytest.raises(SlowReader, match="read faster"):
            await run.next()

    asyncio.run(scene())


def test_a_refusal_by_the_engine_comes_before_the_first_batch() -> None:
    """A request that the engine refuses because of its target has not begun: the reply has its status."""

    async def scene() -> None:
        run, sink = submitted()
        sink([RequestFailed(TargetUnreachable("late"))])
        await asyncio.sleep(0)
        with pytest.raises(TargetUnreachable):
            await run.next()

    asyncio.run(scene())


def test_a_refusal_after_the_request_was_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of two prompts is submitted in a thread when the caller leaves, the second one is refused."""
    monkeypatch.setattr(local_handler, "QUICK_TOKENS", 1)
    engine, may_submit = FakeEngine(pause_s=0.001), threading.Event()
    submit, prompts = engine.submit, iter("ab")

    def slow(request: EngineRequest, sink: Any) -> RequestHandle:
        may_submit.wait(5)
        if next(prompts) == "b":
            raise Overloaded("the queue is full")
        return submit(request, sink)

    engine.submit = slow  # type: ignore[method-assign]

    async def scene() -> None:
        with ModelThreads(1) as threads:
            handler, call = LocalHandler(OneModel(cast("Any", FakeModel(engine=engine))), threads), new_call()
            request = CompletionRequest(id="r", prompts=("a" * 50, "b" * 50), sampling={"max_tokens": 500})
            opening = asyncio.create_task(open_stream(handler, request, call))
            await asyncio.sleep(0.05)
            opening.cancel()
            await asyncio.wait([opening])
            may_submit.set()
            async with asyncio.timeout(5):
                while handler.runs:
                    await asyncio.sleep(0.01)
            assert opening.cancelled() and handler.queued_tokens == 0 and len(call.usages) == 1

    asyncio.run(scene())
    gc.collect()
    assert not caplog.records
    engine.close()
