"""The protocol: every message round-trips, and anything else is rejected."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import fields

from headrace.chat.answer_span import AnswerSpan
from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import EngineLimits, EngineStatus, MemoryPlan
from headrace.engine.request import (
    ChoiceFinished,
    ContinuationsScored,
    Delta,
    Embedding,
    EmbedParams,
    EngineEvent,
    EngineRequest,
    PromptLogprobs,
    RequestFailed,
    RequestFinished,
    Selection,
    Targets,
    Timing,
    TokenLogprob,
    Usage,
)
from headrace.engine.scaling.options import Ranking, Scaling, Vote
from headrace.errors import EngineStopped, HeadraceError, InvalidRequest, OutOfMemory, Overloaded
from headrace.grammar.constraint import Constraint, GrammarError
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.sampling.reasoning_budget import ReasoningBudget
from headrace.workers.protocol import (
    FRAME_LIMIT_BYTES,
    HEADER_BYTES,
    AdapterResult,
    BadFrame,
    BeginImport,
    Cancel,
    EndImport,
    EventsAck,
    ExportEnded,
    ExportPages,
    FinishExport,
    FromWorker,
    HotTexts,
    ImportEnded,
    ImportPart,
    Leaving,
    ListHotTexts,
    LoadAdapter,
    LoadModel,
    LoadProgress,
    ModelPlanned,
    ModelReady,
    ModelRejected,
    PagePart,
    PagesExported,
    PartTaken,
    Pause,
    PlanModel,
    StepEvents,
    StopExport,
    Submit,
    SubmitResult,
    ToWorker,
    UnloadAdapter,
    frame,
    read_events,
    read_from_worker,
    read_to_worker,
    step_frame,
)
from headrace.workers.transport import Pipe

PLAN = MemoryPlan(
    step_tokens=512,
    step_rows=32,
    context=512,
    kv_type="bf16",
    weights_bytes=1,
    kv_bytes=2,
    state_bytes=3,
    activation_bytes=4,
    base_bytes=5,
    page_count=6,
    page_tokens=16,
    weight_bytes_per_token=7,
)
STATUS = EngineStatus(1, 2, 3, 4, 5, 6, 7.5, True, 8, 9, 0.5)
PARAMS = SamplingParams(
    temperature=0.5,
    logit_bias={3: -1.5, 100_000: 2.0},
    seed=2**64 - 1,
    stop=("a", "é\x00"),
    stop_token_ids=(1, 2),
    allowed_token_ids=(5,),
    logprobs=3,
)
REQUEST = EngineRequest(
    prompt=tuple(range(2000)),
    params=PARAMS,
    request_id="r",
    account="an account",
    cache_salt="s",
    cache=False,
    priority=-3,
    deadline_s=1.25,
    is_continuation=True,
    constraint=Constraint("regex", "a+", after="</think>", param="regex"),
    visible_token_ids=frozenset({7, 8}),
    prediction=(4, 5),
    thinking=ReasoningBudget(
        max_tokens=5, start=b"<think>", end=b"\xff", closing=(1, 2), starts_in_reasoning=True
    ),
    embed=EmbedParams(7),
    continuations=((3, 4), (5,)),
    slo=Targets(0.2, 0.03),
    predicts=True,
    adapter="a1b2",
    scaling=Scaling(
        vote=Vote("regex", "([a-d])"), max_total_tokens=99, place=AnswerSpan("</t>", "<t>", True, ("a", "b"))
    ),
)
OPTIONS = EngineOptions(quantization="int4", max_model_len=5, cache_dir=Path("/a/b"), memory_bytes=2**40)
EVENTS: list[EngineEvent] = [
    PromptLogprobs((TokenLogprob(3, -0.5, ((3, -0.5),)),)),
    Delta(1, "é€\x00", (5, 6), (TokenLogprob(5, -0.25, ((5, -0.25), (9, -3.0))), TokenLogprob(6, -1.0))),
    ContinuationsScored((-0.5, -3.25)),
    Embedding(2, b"\x00\x00\x80?" * 6),
    ChoiceFinished(1, "stop", "end"),
    ChoiceFinished(2, "length", 7),
    Selection((2, 0, 1), "7", (("7", 2), ("é", 1)), (None, -0.5, 1.0), "deadline_s"),
    RequestFinished(Usage(1, 2, 3, "diverged", tokens_saved=40), Timing(0.1, 0.2, 0.3), 2**64 - 1),
]
PART = PagePart(4, 2, 2**64 - 1, (12, 3, 4096), memoryview(b"\x00\xffabc"))
TO_WORKER: list[ToWorker] = [
    PlanModel("folder", OPTIONS),
    LoadModel(),
    Submit(3, REQUEST, True),
    Submit(4, EngineRequest(prompt=(1,), scaling=Scaling(rank=Ranking("sum_logprob", 3))), False),
    Cancel(4),
    EventsAck(12),
    Pause(4, True),
    LoadAdapter(5, Path("adapters/sql"), "a1b2"),
    UnloadAdapter("a1b2"),
    ExportPages(6, (True, "salt", "a1b2"), (1, 2, 3), 4, "7", True, False),
    FinishExport(6),
    PartTaken(6),
    StopExport(6),
    BeginImport(6, (False, "7", ""), (1, 2, 3), "bf16 class"),
    ImportPart(6, PART),
    EndImport(6),
    ListHotTexts(7, 2**30),
]
LIMITS = EngineLimits(context_length=9, max_num_seqs=2)
FROM_WORKER: list[FromWorker] = [
    ModelPlanned(PLAN),
    LoadProgress(1, 2),
    ModelReady(LIMITS, PARAMS, 100, 50, 1, 0, STATUS),
    SubmitResult(1, None),
    AdapterResult(5, AdapterInfo("a1b2", 8, 1000), None),
    PagesExported(6, PART),
    ExportEnded(6, "why"),
    PartTaken(6),
    ImportEnded(6, 64, ""),
    HotTexts(7, [((True, "salt", ""), 3, (1, 2, 3))]),
    Leaving(),
]


def test_messages_to_workers_round_trip() -> None:
    for message in TO_WORKER:
        assert read_to_worker(frame(message)[HEADER_BYTES:]) == message
    assert {type(message) for message in TO_WORKER} == set(get_args(ToWorker))


def test_messages_from_workers_round_trip() -> None:
    for message in FROM_WORKER:
        assert read_from_worker(frame(message)[HEADER_BYTES:]) == message
    kinds = {type(message) for message in FROM_WORKER}
    assert set(get_args(FromWorker)) - kinds == {
        ModelRejected,
        StepEvents,
    }  # whose errors and events are compared below


def test_every_kind_of_event_round_trips() -> None:
    step = read_from_worker(step_frame(STATUS, [(5, EVENTS[:2]), (7, EVENTS[2:])])[HEADER_BYTES:])
    assert isinstance(step, StepEvents)
    assert step.status == STATUS
    assert [(number, read_events(batch)) for number, batch in step.batches] == [
        (5, EVENTS[:2]),
        (7, EVENTS[2:]),
    ]
    assert {type(event) for event in EVENTS} | {RequestFailed} == set(get_args(EngineEvent))


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("why", param="prompt", code="special"),
        EngineStopped("gone"),
        GrammarError("no such rule", param="grammar"),
        Overloaded("full", retry_after_s=2.5, reason="memory"),
        OutOfMemory("full", needed_bytes=5),
    ],
)
def test_errors_give_the_same_reply_on_the_other_side(error: HeadraceError) -> None:
    refused = read_from_worker(frame(ModelRejected(error))[HEADER_BYTES:])
    assert isinstance(refused, ModelRejected)
    step = read_from_worker(step_frame(STATUS, [(1, [RequestFailed(error)])])[HEADER_BYTES:])
    assert isinstance(step, StepEvents)
    [failed] = read_events(step.batches[0][1])
    assert isinstance(failed, RequestFailed)
    for back in (refused.error, failed.error):
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert vars(error).items() <= vars(back).items()
        assert (back.status, back.kind, back.exit_code) == (error.status, error.kind, error.exit_code)


def test_an_error_of_an_unknown_class_gives_the_same_reply() -> None:
    class Strange(InvalidRequest):
        status = 418
        code = "teapot"

    body = frame(ModelRejected(Strange("short and stout", param="spout")))[HEADER_BYTES:]
    refused = read_from_worker(body.replace(b"Strange", b"Unknown"))
    assert isinstance(refused, ModelRejected)
    error = refused.error
    assert type(error) is HeadraceError
    assert (error.status, error.code, error.kind, error.param) == (418, "teapot", Strange.kind, "spout")


def test_hostile_bodies_are_bad_frames_and_nothing_else() -> None:
    bodies = [frame(message)[HEADER_BYTES:] for message in (*TO_WORKER, *FROM_WORKER)]
    bodies.append(step_frame(STATUS, [(1, EVENTS)])[HEADER_BYTES:])
    random_bytes = random.Random(5)
    for body in bodies:
        cuts = {random_bytes.randrange(len(body)) for _ in range(60)}
        damaged = [body[:cut] for cut in cuts]
        damaged += [body[:at] + bytes([random_bytes.randrange(256)]) + body[at + 1 :] for at in cuts]
        for hostile in (*damaged, b"", b"\xc1", b"\x91\xa4Evil", body + b"\x00"):
            for read in (read_to_worker, read_from_worker):
                try:
                    message = read(hostile)
                    if isinstance(message, StepEvents):
                        for _, batch in message.batches:
                            read_events(batch)
                except BadFrame:
                    pass


def test_wrong_types_are_named() -> None:
    with pytest.raises(BadFrame, match="int"):
        read_to_worker(frame(Cancel("x"))[HEADER_BYTES:])  # type: ignore[arg-type]
    with pytest.raises(BadFrame, match="Invalid value"):
        read_to_worker(frame(LoadProgress(1, 2))[HEADER_BYTES:])  # a message of the other direction
    with pytest.raises(BadFrame):
        read_events([(99, b"\x80")])  # type: ignore[list-item]


def test_a_too_large_message_is_not_sent() -> None:
    with pytest.raises(BadFrame, match="at most"):
        frame(PlanModel("x" * (FRAME_LIMIT_BYTES + 1), OPTIONS))


def test_every_field_of_a_request_is_covered() -> None:
    """A new field of a request must differ from its default above, so that its transfer is tested."""
    plain = EngineRequest(prompt=(1,))
    for field in fields(EngineRequest):
        assert getattr(REQUEST, field.name) != getattr(plain, field.name), field.name


class Ends:
    """A pipe and the raw other end of it."""

    def __init__(self, *, eager: bool = False) -> None:
        mine, self.other = socket.socketpair()
        self.pipe: Pipe[bytes] = Pipe(mine, b"".join, "test-pipe", eager=eager)

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self.other.close()


def test_frames_arrive_in_order_however_they_are_split() -> None:
    with Ends() as ends:
        data = frame(Cancel(1)) + frame(LoadModel()) + frame(Cancel(2))
        for byte in data:
            ends.other.send(bytes([byte]))
        got = [read_to_worker(ends.pipe.read() or b"") for _ in range(3)]
        assert got == [Cancel(1), LoadModel(), Cancel(2)]
        ends.other.close()
        assert ends.pipe.read() is None


@pytest.mark.parametrize("eager", [False, True])
def test_what_the_socket_does_not_take_at_once_arrives_in_order(eager: bool) -> None:
    """Frames of all lengths, of which the socket holds a few only while nobody reads."""
    with Ends(eager=eager) as ends:
        orders = [Submit(n, EngineRequest(prompt=(7,) * (n * 97 % 5000)), False) for n in range(400)]
        for order in orders[:300]:
            ends.pipe.put(frame(order))
        reader = Pipe[bytes](ends.other, b"".join, "test-reader")
        got = [read_to_worker(reader.read() or b"") for _ in range(250)]
        for order in orders[300:]:
            ends.pipe.put(frame(order))
        got += [read_to_worker(reader.read() or b"") for _ in range(150)]
        assert got == orders
        reader.close()


def test_an_end_inside_a_frame_is_a_bad_frame() -> None:
    data = frame(Submit(1, REQUEST, False))
    for cut in (2, HEADER_BYTES, HEADER_BYTES + 1, len(data) - 1):
        with Ends() as ends:
            ends.other.sendall(data[:cut])
            ends.other.close()
            with pytest.raises(BadFrame, match="cut short"):
                ends.pipe.read()


def test_a_length_beyond_the_limit_is_refused_before_it_is_read() -> None:
    with Ends() as ends:
        ends.other.sendall((FRAME_LIMIT_BYTES + 1).to_bytes(HEADER_BYTES, "little"))
        with pytest.raises(BadFrame, match="at most"):
            ends.pipe.read()


@pytest.mark.parametrize("eager", [False, True])
def test_writing_to_a_closed_pipe_is_ignored(eager: bool) -> None:
    with Ends(eager=eager) as ends:
        ends.other.close()
        for _ in range(100):
            ends.pipe.put(frame(LoadModel()))
        assert ends.pipe.read() is None


def test_functions_are_rejected() -> None:
    order = Submit(1, EngineRequest(prompt=(1,), scaling=Scaling(vote=Vote("last_number"))), False)
    body = frame(order)[HEADER_BYTES:]
    assert read_to_worker(body) == order
    name, nothing = b"\xa8function", b"\xc0"
    with pytest.raises(BadFrame, match="a function cannot cross"):
        read_to_worker(body.replace(name + nothing, name + b"\x05"))
