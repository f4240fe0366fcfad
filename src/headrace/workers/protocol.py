"""Messages between the server and its workers, and their encoding.

A frame is its length (4 bytes, little-endian) followed by MessagePack. Frames contain no code; the type of
every field is checked when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import EngineLimits, EngineStatus, MemoryPlan
from headrace.engine.request import EngineEvent, EngineRequest
from headrace.errors import HeadraceError, OutOfMemory, Overloaded
from headrace.loading.options import EngineOptions
from headrace.sampling.params import SamplingParams
from headrace.struct_types import thread_safe

FRAME_LIMIT_BYTES = 64 * 2**20
HEADER_BYTES = 4


class BadFrame(HeadraceError):
    """The other side sent an invalid message and cannot be trusted any more."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Encoded as an array that begins with the class name."""


class PlanModel(_Message, frozen=True):
    """To the worker: read the model and plan its memory. May be repeated with other options."""

    model: str
    options: EngineOptions


class LoadModel(_Message, frozen=True):
    """To the worker: load the planned model."""


class Submit(_Message, frozen=True):
    """To the worker: run a request. `acknowledge`: first reply with SubmitResult."""

    number: int
    request: EngineRequest
    acknowledge: bool


class Cancel(_Message, frozen=True):
    """To the worker: cancel a request."""

    number: int


class Pause(_Message, frozen=True):
    """To the worker: pause a request while its reader is behind, or resume it."""

    number: int
    paused: bool


class LoadAdapter(_Message, frozen=True):
    """To the worker: load an adapter and reply with AdapterResult; before anything that comes after it, where
    it has an `expected` digest, otherwise beside it."""

    number: int
    path: Path
    expected: str | None


class UnloadAdapter(_Message, frozen=True):
    """To the worker: take no more requests for an adapter."""

    digest: str


class EventsAck(_Message, frozen=True):
    """To the worker: the events up to this engine step have been delivered."""

    steps: int


PrefixRoot = tuple[bool, str, str]
"""The salt of a text in the prefix tree, see `Sequence.cache_root`."""


class PagePart(msgspec.Struct, frozen=True, array_like=True):
    """Pages of a text from its page `first` on: their bytes, or where these are in memory that the worker
    shares (process, file, offset)."""

    first: int
    count: int
    checksum: int
    place: tuple[int, int, int] | None
    data: memoryview


class ExportPages(_Message, frozen=True):
    """To the worker: give the full pages of a text from its page `first` on. With `follows`: as the request
    `request` computes them, until FinishExport."""

    move: int
    root: PrefixRoot
    tokens: tuple[int, ...]
    first: int
    request: str
    follows: bool
    shares: bool


class FinishExport(_Message, frozen=True):
    """To the worker: no more will be computed of what is exported."""

    move: int


class PartTaken(_Message, frozen=True):
    """To the worker and from it: a part was read, its memory may be used again."""

    move: int


class StopExport(_Message, frozen=True):
    """To the worker: nobody wants more of this."""

    move: int


class BeginImport(_Message, frozen=True):
    """To the worker: parts of a text follow, which is refused where its pages are of another class."""

    move: int
    root: PrefixRoot
    tokens: tuple[int, ...]
    page_class: str


class ImportPart(_Message, frozen=True):
    """To the worker: the next part; PartTaken comes back."""

    move: int
    part: PagePart


class EndImport(_Message, frozen=True):
    """To the worker: there are no more parts; ImportEnded comes back."""

    move: int


class ListHotTexts(_Message, frozen=True):
    """To the worker: the most recently used texts of its prefix cache, so many bytes at most."""

    move: int
    max_bytes: int


class PagesExported(_Message, frozen=True):
    """From the worker: the next part of what is exported."""

    move: int
    part: PagePart


class ExportEnded(_Message, frozen=True):
    """From the worker: there are no more parts; the `problem` that ended it, "" for none."""

    move: int
    problem: str


class ImportEnded(_Message, frozen=True):
    """From the worker: so many `tokens` of the text are in its prefix cache; why not more, "" for nothing."""

    move: int
    tokens: int
    problem: str


class HotTexts(_Message, frozen=True):
    """From the worker: the salt of each text, how many of its pages an earlier one has, and its tokens."""

    move: int
    texts: list[tuple[PrefixRoot, int, tuple[int, ...]]]


class ModelPlanned(_Message, frozen=True):
    """From the worker: the model is planned; this is the memory it will use."""

    plan: MemoryPlan


class ModelRejected(_Message, frozen=True):
    """From the worker: the model cannot be planned or loaded."""

    error: HeadraceError


class LoadProgress(_Message, frozen=True):
    """From the worker: bytes of weights packed so far, and in total."""

    done_bytes: int
    total_bytes: int


class ModelReady(_Message, frozen=True):
    """From the worker: ready for requests. `longest` is the maximum of prompt plus output, in tokens."""

    limits: EngineLimits
    defaults: SamplingParams
    vocabulary: int
    longest: int
    cache_failures: int
    cache_damages: int
    status: EngineStatus
    page_class: str = ""
    """What the bytes of its KV pages depend on apart from the weights; "": they cannot be moved."""


class SubmitResult(_Message, frozen=True):
    """From the worker: whether it has accepted a request."""

    number: int
    error: HeadraceError | None


class AdapterResult(_Message, frozen=True):
    """From the worker: the adapter that was loaded, or why it was not."""

    number: int
    info: AdapterInfo | None
    error: HeadraceError | None


class Leaving(_Message, frozen=True):
    """From a worker of another machine: it was asked to end there, so it should get no more requests."""


class StepEvents(_Message, frozen=True):
    """From the worker: the engine's status, and the events since the last such message.

    `batches` has, for each request, its number and its events; an event is the index of its class in
    `EngineEvent` and its fields.
    """

    status: EngineStatus
    batches: list[tuple[int, list[tuple[int, msgspec.Raw]]]]


Order = PlanModel | LoadModel | Submit | Cancel | Pause | LoadAdapter | UnloadAdapter | EventsAck
PageOrder = (
    ExportPages | FinishExport | PartTaken | StopExport | BeginImport | ImportPart | EndImport | ListHotTexts
)
PageReport = PagesExported | ExportEnded | PartTaken | ImportEnded | HotTexts
ToWorker = Order | PageOrder
FromWorker = (
    ModelPlanned
    | ModelRejected
    | LoadProgress
    | ModelReady
    | SubmitResult
    | AdapterResult
    | StepEvents
    | PageReport
    | Leaving
)

EVENTS: tuple[type[EngineEvent], ...] = get_args(EngineEvent)
_NUMBERS = {kind: number for number, kind in enumerate(EVENTS)}


class _Error(msgspec.Struct, frozen=True, array_like=True):
    """An error: the name of its class, and everything that an HTTP reply needs."""

    name: str
    message: str
    param: str | None
    code: str | None
    kind: str
    status: int
    exit_code: int
    retry_after_s: float
    reason: str
    needed_bytes: int


def _to_wire(value: Any) -> Any:
    if isinstance(value, HeadraceError):
        later = value if isinstance(value, Overloaded) else Overloaded("")
        needed_bytes = value.needed_bytes if isinstance(value, OutOfMemory) else 0
        return _Error(
            *(type(value).__name__, value.message, value.param, value.code, value.kind),
            *(value.status, value.exit_code, later.retry_after_s, later.reason, needed_bytes),
        )
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot cross the pipe")


def _from_wire(kind: Any, value: Any) -> Any:
    if not isinstance(kind, type):
        raise ValueError("a function cannot cross the pipe")
    if issubclass(kind, HeadraceError):
        return _error(msgspec.convert(value, thread_safe(_Error)))
    if issubclass(kind, Path):
        return Path(msgspec.convert(value, str))
    raise NotImplementedError(f"{kind.__name__} cannot cross the pipe")


def _error(wire: _Error) -> HeadraceError:
    """An error of the same class if this process knows it, otherwise one with the same reply."""
    known = {kind.__name__: kind for kind in _kinds(HeadraceError)}
    kind = known.get(wire.name, HeadraceError)
    error = kind.__new__(kind, wire.message)
    HeadraceError.__init__(error, wire.message, param=wire.param, code=wire.code)
    error.kind, error.status, error.exit_code = wire.kind, wire.status, wire.exit_code
    if isinstance(error, Overloaded):
        error.retry_after_s, error.reason = wire.retry_after_s, wire.reason
    if isinstance(error, OutOfMemory):
        error.needed_bytes = wire.needed_bytes
    return error


def _kinds(base: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in _kinds(child))]


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker, dec_hook=_from_wire)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker, dec_hook=_from_wire)
_events = tuple(msgspec.msgpack.Decoder(kind, dec_hook=_from_wire) for kind in EVENTS)


def frame(message: ToWorker | FromWorker) -> bytes:
    """Encode a message; BadFrame if it exceeds the receiver's limit."""
    return _framed(_encoder.encode(message))


def step_frame(status: EngineStatus, batches: Sequence[tuple[int, Sequence[EngineEvent]]]) -> bytes:
    """Encode a `StepEvents`."""
    numbered = [(number, [(_NUMBERS[type(event)], event) for event in events]) for number, events in batches]
    return _framed(_encoder.encode(("StepEvents", status, numbered)))


def _framed(body: bytes) -> bytes:
    if len(body) > FRAME_LIMIT_BYTES:
        raise BadFrame(f"a message has {len(body):,} bytes, at most {FRAME_LIMIT_BYTES:,} cross the pipe")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def read_to_worker(body: bytes) -> ToWorker:
    """Decode a frame's body; BadFrame if it is invalid."""
    try:
        return _to_worker.decode(body)
    except (ValueError, HeadraceError) as error:
        raise BadFrame(f"no message for a worker: {error}") from None


def read_from_worker(body: bytes) -> FromWorker:
    """Decode a frame's body; BadFrame if it is invalid."""
    try:
        return _from_worker.decode(body)
    except (ValueError, HeadraceError) as error:
        raise BadFrame(f"no message of a worker: {error}") from None


def read_events(batch: list[tuple[int, msgspec.Raw]]) -> list[EngineEvent]:
    """Decode the events of one request; BadFrame if they are invalid."""
    try:
        return [_events[number].decode(raw) for number, raw in batch]
    except (ValueError, IndexError, HeadraceError) as error:
        raise BadFrame(f"no events: {error}") from None
