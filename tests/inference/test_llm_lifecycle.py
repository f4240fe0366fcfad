"""`LLM` and `AsyncLLM` that are closed, or used from another thread or loop: nothing waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from fake import FakeEngine, FakeModel

from headrace.errors import ContextLengthExceeded, EngineStopped, InvalidRequest
from headrace.inference.loop_thread import LoopThread
from headrace.llm import LLM, AsyncLLM

T = TypeVar("T")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine(pause_s=0.001)
    monkeypatch.setattr("headrace.llm.load_model", lambda *_, **__: FakeModel(engine=engine))
    return engine


def within(work: Callable[[], T], timeout_s: float = 10.0) -> T:
    """What `work` returns or raises, in a thread that ends in time."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(timeout_s)


def test_a_stream_that_another_thread_closes_ends(engine: FakeEngine) -> None:
    engine.go.clear()
    with LLM("fake") as llm:
        stream: Any = llm.stream("hello", max_tokens=5)
        closing = threading.Timer(0.2, stream.close)
        closing.start()
        assert within(lambda: list(stream)) == []
        assert engine.cancelled_event.wait(5)
        engine.go.set()


def test_a_stream_whose_model_is_closed_says_so(engine: FakeEngine) -> None:
    llm = LLM("fake")
    stream = llm.stream("hello", max_tokens=3000)
    threading.Timer(0.2, llm.close).start()
    with pytest.raises(EngineStopped, match="closed before"):
        within(lambda: list(stream))


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_a_closed_model_says_so(engine: FakeEngine, kind: type[LLM | AsyncLLM]) -> None:
    llm: Any = kind("fake")
    llm.close()

    def generate() -> object:
        found = llm.chat([{"role": "user", "content": "hello"}], max_tokens=2)
        return asyncio.run(found) if kind is AsyncLLM else found

    with pytest.raises(EngineStopped, match="closed"):
        within(generate)


def test_one_event_loop_after_another(engine: FakeEngine) -> None:
    llm = AsyncLLM("fake")
    texts = [within(lambda: asyncio.run(llm.generate("a", max_tokens=2))).text for _ in range(2)]
    assert texts == ["a ", "a "]
    llm.close()


def test_closing_on_the_event_loop_while_events_wait_for_it(engine: FakeEngine) -> None:
    async def run() -> None:
        llm = AsyncLLM("fake")
        stream: Any = llm.stream("a", max_tokens=3000)
        await anext(stream)
        time.sleep(0.1)  # the engine waits for this loop now
        llm.close()
        await stream.aclose()

    within(lambda: asyncio.run(run()))


def test_a_loop_that_is_closed_from_its_own_thread_ends() -> None:
    """As by the garbage collector, which runs in any thread."""
    thread, ended = LoopThread(), threading.Event()

    async def close() -> threading.Thread:
        thread.close()
        ended.set()
        return threading.current_thread()

    with pytest.raises(EngineStopped):  # the loop stops before it can answer
        within(lambda: thread.run(_then_wait(close)))
    assert ended.is_set()


async def _then_wait(first: Callable[[], Any]) -> None:
    await first()
    await asyncio.Event().wait()


def test_an_interrupted_wait_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, cancelled = LoopThread(), threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def interrupted(self: Future[Any], timeout: float | None = None) -> None:
        time.sleep(0.1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Future, "result", interrupted)
        thread.run(work())
    assert cancelled.wait(5)
    thread.close()


def test_a_batch_raises_the_error_of_the_prompt_that_fails(engine: FakeEngine) -> None:
    llm = AsyncLLM("fake")
    with pytest.raises(ContextLengthExceeded):
        within(lambda: asyncio.run(llm.generate_batch(["a", "b" * 5000], max_tokens=2)))
    llm.close()


def test_a_batch_leaves_room_in_the_queue(engine: FakeEngine) -> None:
    engine.limits = type(engine.limits)(context_length=4096, max_num_seqs=2, max_waiting=2)
    llm, most, submit = AsyncLLM("fake"), 0, engine.submit

    def counted(*arguments: Any) -> Any:
        nonlocal most
        handle = submit(*arguments)
        most = max(most, len(engine._running))
        return handle

    engine.submit = counted  # type: ignore[method-assign]
    found = within(lambda: asyncio.run(llm.generate_batch(["a"] * 9, max_tokens=3, n=2)))
    assert len(found) == 9 and most <= 2
    llm.close()


@pytest.mark.parametrize("n", ["x", 0])
def test_a_batch_with_a_bad_number_of_choices_is_refused_by_name(engine: FakeEngine, n: object) -> None:
    with LLM("fake") as llm, pytest.raises(InvalidRequest) as caught:
        llm.generate_batch(["a"], n=n)
    assert caught.value.param == "n"
