"""What the process of a statement may ask, however hostile it is."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.data.answering import Answering
from headrace.data.limits import AiBudget, AiLimits, Speeds
from headrace.data.questions import Argument, CallSite, Declare, encode_question
from headrace.errors import InvalidRequest
from headrace.inference.local_models import LocalModels
from headrace.isolation.child import IsolatedProcess, WorkFailed, WorkLost, WorkStop
from headrace.isolation.limits import ProcessLimits

LIMITS = ProcessLimits(20.0, 2**28)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Generator[IsolatedProcess]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = IsolatedProcess("asking_work")
    yield found
    found.close()


def test_questions_are_answered_in_turn(process: IsolatedProcess) -> None:
    assert process.call(b"many 5", LIMITS, answer=lambda asked: asked * 2) == b"0011223344"
    assert process.call(b"threads 8", LIMITS, answer=lambda asked: asked) == b"0,1,2,3,4,5,6,7"
    long = process.call(b"once " + b"x" * 10_000_000, LIMITS, answer=lambda asked: asked[:9_000_000])
    assert len(long) == 9_000_000


def test_who_may_not_ask_gets_no_answer(process: IsolatedProcess) -> None:
    with pytest.raises(WorkFailed, match="may not have"):
        process.call(b"once x", LIMITS)
    with pytest.raises(WorkFailed, match="bytes"):
        process.call(b"large x", LIMITS, answer=lambda asked: asked)

    def refuse(asked: bytes) -> bytes:
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest, match="no"):
        process.call(b"once x", LIMITS, answer=refuse)
    assert process.call(b"once x", LIMITS, answer=lambda asked: asked) == b"x"  # others go on


def test_the_time_of_answers_does_not_count(process: IsolatedProcess) -> None:
    def slow(asked: bytes) -> bytes:
        time.sleep(1.0)
        return asked

    assert process.call(b"once x", LIMITS, wait_s=10.0, answer=slow) == b"x"
    assert process.call(b"many 2", LIMITS, wait_s=0.9, answer=slow) == b"01"


def test_work_can_be_stopped_while_it_waits(process: IsolatedProcess) -> None:
    stop, called = WorkStop(), []

    def answer(asked: bytes) -> bytes:
        with stop.calling(lambda: called.append(True)):
            stop.stop()
        return asked

    with pytest.raises(WorkLost):
        process.call(b"many 3", LIMITS, stop=stop, answer=answer)
    assert called == [True]


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "other"}),
        msgspec.msgpack.encode({"type": "compute", "call": 0, "rows": []}),
        msgspec.msgpack.encode({"type": "compute", "call": -1, "rows": [["x"]]}),
        msgspec.msgpack.encode({"type": "compute", "call": 0, "rows": [[1]]}),
        msgspec.msgpack.encode({"type": "compute", "call": 0, "rows": [["x"] * 100]}),
        msgspec.msgpack.encode({"type": "compute", "call": 0, "rows": [[]] * 70_000}),
        msgspec.msgpack.encode(
            {"type": "declare", "calls": [{"function": "ai", "arguments": [[True]] * 99}]}
        ),
    ],
)
def test_what_is_no_question_ends_the_work(question: bytes) -> None:
    none: Any = None
    limits = AiLimits(rows=1, tokens=1, seconds=1)
    answering = Answering(none, None, AiBudget(limits), WorkStop(), Speeds())
    with pytest.raises(WorkFailed):
        answering.answer(question)


@pytest.mark.parametrize(
    "site",
    [
        CallSite(function="read_text", arguments=(Argument(True, "/etc/passwd"),)),
        CallSite(function="../ai", arguments=()),
        CallSite(function="classify", arguments=(Argument(False), Argument(True, {"a": [{}]}))),
        CallSite(function="ai", arguments=(Argument(True, "x"),), options={"max_tokens": [1]}),
        CallSite(function="ai", arguments=(Argument(True, "x"),), options={"max_tokens": 10**12}),
        CallSite(function="ai", arguments=(Argument(True, "x"),), options={"temperature": float("nan")}),
    ],
)
def test_a_call_that_is_none_is_refused(site: CallSite) -> None:
    models = LocalModels()
    answering = Answering(models, None, AiBudget(AiLimits(rows=1, tokens=1, seconds=9)), WorkStop(), Speeds())
    with pytest.raises(InvalidRequest):
        answering.answer(encode_question(Declare((site,))))
    models.close()
