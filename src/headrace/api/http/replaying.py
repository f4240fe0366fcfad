"""A request of the journal is made again, within this process and for nobody."""

from __future__ import annotations

import time

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Message

from headrace.api.http.held_reply import HeldBytes, HeldReply
from headrace.api.http.resuming import new_call, receiving, scope_of
from headrace.inference.accounts import Account
from headrace.journal.call_journal import CallJournal, UnkeptJournal
from headrace.journal.records import OpenedRequest


class Replayed(Struct, frozen=True):
    """What came of it. `seconds` are without those in which the model was loaded."""

    status: int
    parts: tuple[bytes, ...]
    seconds: float
    output_tokens: int
    fingerprint: str
    model: str


async def replay(app: ASGIApp, opened: OpenedRequest, account: Account) -> Replayed:
    """Make a request again, with its seeds and its ids, from the start."""
    call, reply = new_call(opened, account), HeldReply(HeldBytes())
    call.arrived_unix_s = opened.arrived_unix_s
    call.journal = journal = CallJournal(UnkeptJournal(), 0, opened)
    began_s = time.monotonic()

    async def take(message: Message) -> None:
        reply.take(message)

    await app(scope_of(opened, call), receiving(opened.body), take)
    return Replayed(
        reply.status,
        tuple(reply.parts),
        max(0.0, time.monotonic() - began_s - call.load_s),
        sum(one.completion_tokens for one in call.usages),
        journal.fingerprint,
        call.model,
    )


def with_model(opened: OpenedRequest, name: str) -> OpenedRequest:
    """The same request for another model. ValueError where its body names none."""
    body = msgspec.json.decode(opened.body)
    if not isinstance(body, dict):
        raise ValueError("the body is no object")
    return msgspec.structs.replace(opened, body=msgspec.json.encode({**body, "model": name}))
