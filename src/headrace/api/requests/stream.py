"""GET /v1/requests/{id}/stream: the reply to a request of the journal, read again from any event on."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.event_stream import sse_content
from headrace.api.http.generation import unless_gone
from headrace.api.http.held_reply import HeldBytes, HeldReply
from headrace.api.http.journaling import ServerJournal
from headrace.api.http.query import Query, read_query
from headrace.api.service import get_service
from headrace.errors import InvalidRequest
from headrace.journal.records import EndedReply, shared_id
from headrace.storage.deletion import delete_everywhere
from headrace.storage.idempotent_replies import IdempotentReplies

LAST_EVENT_ID = "last-event-id"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class StreamQuery(Query, frozen=True, kw_only=True):
    """Where the stream begins."""

    starting_after: (
        Annotated[int, Meta(ge=0, le=2**63 - 1, description="As the header `Last-Event-ID`.")] | None
    ) = None


class StreamEvent(Struct, frozen=True):
    """What an event has is what the request's own endpoint sends."""


class DeletedRequest(Struct, frozen=True):
    """A request that was forgotten."""

    id: str
    deleted: Literal[True] = True
    object: Literal["request.deleted"] = "request.deleted"


class StillRunning(InvalidRequest):
    """The request has not ended, and cannot be deleted."""

    remedy = "Wait until it has ended, or close its connection."
    status = 409
    code = "request_running"


class ReplyNotHeld(InvalidRequest):
    """The reply was too long to be held."""

    remedy = "Send the request again."
    status = 410
    code = "reply_not_held"


class HeldStream(Response):
    """The parts of a reply from a number on, as they come. A client that leaves stops nothing."""

    def __init__(self, reply: HeldReply, first: int) -> None:
        super().__init__(status_code=reply.status, headers=_HEADERS if reply.is_stream else None)
        del self.headers["content-length"]  # not known yet
        for name, value in reply.headers:
            self.headers[name.decode("latin-1")] = value.decode("latin-1")
        self._reply, self._first = reply, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them until the last one, or until the reader has left."""
        http = HttpRequest(scope, receive)
        await unless_gone(http, self._write(send))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self._reply.parts_from(self._first):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@Endpoint(
    "GET",
    "/v1/requests/{request_id}/stream",
    reply=(),
    content=(
        sse_content("The events of the request's own endpoint, each with its number as id.", StreamEvent),
    ),
    query=StreamQuery,
    errors={
        404: "No such request runs, or is kept in the journal, for this key",
        410: "Its reply was too long",
    },
)
async def read_stream(http: HttpRequest, request_id: str) -> Response:
    """The reply to a request that runs or has ended: all of it, or what follows `Last-Event-ID`. Also after
    the server was killed; needs `headrace serve --journal`."""
    query, sent = read_query(StreamQuery, http), http.headers.get(LAST_EVENT_ID)
    if sent and not (sent.isdecimal() and len(sent) < 19):
        raise InvalidRequest(
            f"Last-Event-ID is {sent[:40]!r}: send the number of an event", param=LAST_EVENT_ID
        )
    after = int(sent) if sent else query.starting_after
    journal = get_service(http).journal
    reply = None if journal is None else await _reply(http, journal, request_id)
    if reply is None:
        raise request_not_found(request_id)
    await unless_gone(http, reply.started())
    if reply.is_cut:
        raise ReplyNotHeld(f"the reply to {request_id[:80]!r} was too long to be held: send it again")
    if not reply.status:
        raise request_not_found(request_id)
    return HeldStream(reply, 0 if after is None or not reply.is_stream else after + 1)


@Endpoint(
    "DELETE",
    "/v1/requests/{request_id}",
    reply=DeletedRequest,
    errors={404: "No such request is kept for this key", 409: "It has not ended"},
)
async def delete_request(http: HttpRequest, request_id: str) -> Response:
    """Forget a request that has ended: its line in the log, its records in the journal, its stored response
    and the reply that its Idempotency-Key would get. The bytes are gone from the files when this replies."""
    service, account = get_service(http), call_of(http).account
    owner = await service.run_in_thread(account.owner)
    whose = None if account.may("admin") else owner
    journal = service.journal
    if journal is not None and await journal.runs(request_id, owner, is_admin=whose is None):
        raise StillRunning(f"request {request_id[:80]!r} has not ended: stop it, or wait until it has")
    nonces = [] if journal is None else await journal.delete(request_id, whose)
    shared = {shared_id(request_id), *nonces}
    names = {request_id, *(f"{prefix}{one}" for prefix in ("req_", "resp_") for one in shared)}
    found = await service.requests.delete(names, account) or bool(nonces)

    def delete() -> bool:
        return sum(delete_everywhere(service.shared, name, whose) for name in sorted(names)) > 0

    if not (await service.run_in_thread(delete) or found):
        raise request_not_found(request_id)
    replies = IdempotentReplies(service.shared)
    known = [one for one in shared if one in nonces or one != request_id]  # not what the client has chosen
    await service.run_in_thread(lambda: replies.forget(known))
    await service.run_in_thread(service.shared.erase_copies)
    await service.run_in_thread(service.database.erase_copies)
    return json_response(DeletedRequest(request_id))


async def _reply(http: HttpRequest, journal: ServerJournal, request_id: str) -> HeldReply | None:
    account = call_of(http).account
    owner, is_admin = await journal.owner(account), account.may("admin")
    running = journal.find(request_id, owner, is_admin=is_admin)
    if running is not None:
        return running.reply
    kept = await journal.kept(request_id, None if is_admin else owner)
    return None if kept is None else _of_the_past(kept)


def _of_the_past(ended: EndedReply) -> HeldReply:
    reply = HeldReply(HeldBytes())
    reply.status, reply.headers, reply.is_stream = ended.status, ended.headers, ended.is_stream
    reply.parts = list(ended.parts or ())
    reply.is_cut = ended.parts is None
    reply.is_whole = reply.is_over = True
    return reply


def request_not_found(request_id: str) -> NotFound:
    """The refusal of an id that is none of this key's."""
    return NotFound(
        f"there is no request {request_id[:80]!r} in the journal: it never was, was deleted, is too old, is "
        "another key's, or was answered with the reply of an earlier one (Idempotency-Key)",
        param="request_id",
        code="request_not_found",
    )
