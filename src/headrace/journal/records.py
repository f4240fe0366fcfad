"""What the records of a request have."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import get_args

import msgspec
from msgspec import Struct

from headrace.engine.request import Delta, EngineEvent, EngineRequest, RequestFailed

Batch = tuple[int, list[EngineEvent]]
"""The index of an engine request among those of a run, and the events that came together."""
MAX_LISTED_PATH = 1024
_SHARED_ID = re.compile(r"[a-z]+[-_]([0-9a-f]{32})")


class OpenedRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request as it came. `nonce` is what its ids and seeds are made of; `owner` whose it is in the store,
    `client` whose share of the server's limits it uses."""

    request_id: str
    nonce: str
    method: str = "POST"
    path: str = ""
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    owner: str = ""
    client: str = ""
    arrived_unix_s: float = 0.0
    no_store: bool = False
    body: bytes = b""


class RunBegun(Struct, frozen=True):
    """The model computes for a request. `key` tells this run from others of the request."""

    run: int
    key: bytes
    model: str
    fingerprint: str


class EndedReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a request, and its reply: `parts` are the events of a stream, or the body. None where they
    were too long to be kept."""

    status: int
    error: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    parts: tuple[bytes, ...] | None = ()
    is_stream: bool = False
    model: str = ""
    fingerprint: str = ""
    total_s: float = 0.0
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_s: float | None = None
    key_name: str = ""
    trace_id: str = ""
    ended_unix_s: float = 0.0


class EndedRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a list says of a request that has ended: nothing of its content. Its record's tag is that of
    `owner`, so that those of one key are found among those of all."""

    request_id: str
    nonce: str
    owner: str
    method: str
    path: str
    arrived_unix_s: float
    status: int
    total_s: float
    error: str | None = None
    model: str = ""
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_s: float | None = None
    key_name: str = ""
    trace_id: str = ""


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What a server computes with: replay needs the same. `models` are the models by name."""

    version: str
    isa: str
    started_unix_s: float
    models: dict[str, str]


_KINDS: tuple[type[EngineEvent], ...] = get_args(EngineEvent)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_encoder = msgspec.msgpack.Encoder()
_batch = msgspec.msgpack.Decoder(tuple[int, int, list[tuple[int, msgspec.Raw]]])
_events = tuple(msgspec.msgpack.Decoder(kind) if kind is not RequestFailed else None for kind in _KINDS)
_PLAIN = len(_KINDS)  # a Delta of text and tokens alone, without the names of its fields
_plain = msgspec.msgpack.Decoder(tuple[int, str, tuple[int, ...]])
encode = _encoder.encode


def encode_batch(run: int, index: int, events: Sequence[EngineEvent]) -> bytes | None:
    """The payload of an EVENTS record; None where there is nothing to keep: a failure is found again."""
    rows: list[tuple[int, object]] = []
    for event in events:
        if type(event) is Delta and not event.logprobs:
            rows.append((_PLAIN, (event.choice, event.text, event.tokens)))
        elif not isinstance(event, RequestFailed):
            rows.append((_NUMBERS[type(event)], event))
    return _encoder.encode((run, index, rows)) if rows else None


def decode_batch(payload: bytes) -> tuple[int, Batch]:
    """The run, and its events. ValueError where it is none."""
    run, index, rows = _batch.decode(payload)
    found: list[EngineEvent] = []
    for number, raw in rows:
        if number == _PLAIN:
            found.append(Delta(*_plain.decode(raw)))
        else:
            decoder = _events[number]
            if decoder is None:
                raise ValueError("a failure is no record")
            found.append(decoder.decode(raw))
    return run, (index, found)


def ended_request(opened: OpenedRequest, ended: EndedReply) -> EndedRequest:
    """What a list says of it."""
    return EndedRequest(
        request_id=opened.request_id,
        nonce=opened.nonce,
        owner=opened.owner,
        method=opened.method,
        path=opened.path[:MAX_LISTED_PATH],
        arrived_unix_s=opened.arrived_unix_s,
        status=ended.status,
        total_s=ended.total_s,
        error=ended.error,
        model=ended.model,
        completion_tokens=ended.completion_tokens,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        first_token_s=ended.first_token_s,
        key_name=ended.key_name,
        trace_id=ended.trace_id,
    )


def run_key(requests: Sequence[EngineRequest]) -> bytes:
    """What tells a run from others of its request, whenever it is made."""
    found = hashlib.blake2b(digest_size=8)
    for one in requests:
        found.update(_encoder.encode((one.prompt, one.params, one.adapter)))
    return found.digest()


def shared_id(text: str) -> str:
    """What the ids of a request and of its reply have in common, or the text itself."""
    found = _SHARED_ID.fullmatch(text)
    return text if found is None else found[1]
