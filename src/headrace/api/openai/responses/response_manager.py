"""The responses of a server: those that are being made, and those that are kept, as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct, field
from starlette.requests import Request as HttpRequest

from headrace.api.http.event_stream import sse_event
from headrace.api.openai.responses.items import Item, OutputItem, stored_item
from headrace.api.openai.responses.schema import UNFINISHED, ResponseEvent, ResponseObject
from headrace.api.service import Service
from headrace.errors import InvalidRequest, Overloaded, StoreError
from headrace.inference.accounts import Account, RateLimited
from headrace.inference.events import ParameterWarning
from headrace.storage.responses import STALE_S, Responses, StoredItem, StoredResponse

LOG = logging.getLogger("headrace.api")
MAX_BACKGROUND_RESPONSES = 256  # at a time: each holds its events in memory until it has ended
INTERRUPTED = "the server stopped before this response had ended: make it again"


class NoSuchResponse(InvalidRequest):
    """No response of that id is kept for this key."""

    status = 404
    code = "response_not_found"


class InProgressResponse(Struct, eq=False):
    """A response that is being made, or is on its way into the store."""

    response: ResponseObject
    account: Account
    owner: str
    inputs: Sequence[Item]
    events: list[bytes] = field(default_factory=list[bytes])  # of one in the background
    task: asyncio.Task[None] | None = None  # that makes it in the background
    more: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there are new events; then another takes its place."""

    def emit(self, event: ResponseEvent) -> None:
        """Hold an event for those who read the stream."""
        self.events.append(sse_event(event, event.type))
        self.more.set()
        self.more = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the response is what it will be."""
        return self.response.status not in UNFINISHED


class ResponseManager:
    """Where responses are found. Lives on the event loop; what looks into the store is off it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.store = Responses(service.database)
        self.making: dict[str, InProgressResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Task[None] | None = None

    async def begin(self, making: InProgressResponse) -> None:
        """Keep a response that is to be kept from now on.

        Where the store fails the response says that it is not kept; in the background it is StoreError.
        """
        response = making.response
        if not response.store:
            return
        inputs = [_kept(item) for item in making.inputs]
        body, previous_id = _body(response), response.previous_response_id

        def add() -> None:
            self.store.add(response.id, making.owner, response.status, previous_id, body, inputs)

        self.making[response.id] = making
        try:
            await self._service.run_in_thread(add)
        except StoreError as error:
            self.making.pop(response.id)
            if response.background:
                raise
            LOG.error("%s; response %s is not kept", error.message, response.id)
            response.store = False
            warnings = response.warnings or []
            response.warnings = [*warnings, ParameterWarning("store", f"not kept: {error.message}")]
            return
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._keep_alive())

    def ended(self, making: InProgressResponse) -> asyncio.Task[None]:
        """The response has ended: keep what has become of it, where it is to be kept."""
        task = asyncio.create_task(self._finish(making))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait until everything that has ended is kept."""
        if self._beat is not None:
            self._beat.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def find(self, owner: str, response_id: str) -> InProgressResponse | StoredResponse:
        """A response by its id, as it is now; raises NoSuchResponse."""
        making = self.making.get(response_id)
        if making is not None and making.owner == owner:
            return making
        found = await self._service.run_in_thread(lambda: self._current(owner, response_id))
        if found is None:
            raise response_not_found(response_id)
        return found

    async def shown(self, found: InProgressResponse | StoredResponse) -> msgspec.Struct | msgspec.Raw:
        """The response's JSON."""
        if isinstance(found, InProgressResponse):
            return found.response
        return await self._service.run_in_thread(lambda: self._whole(found))

    async def inputs(self, found: InProgressResponse | StoredResponse) -> list[StoredItem]:
        """The items of the request that made the response."""
        if isinstance(found, InProgressResponse):
            return [_kept(item) for item in found.inputs]
        return await self._service.run_in_thread(lambda: self.store.items(found.id, output=False))

    def events(self, found: StoredResponse, first: int) -> list[bytes] | None:
        """The events from number `first` on of one that was made in the background; None where it was not.

        Looks into the store: not for the event loop.
        """
        kept = self.store.events(found.id, -1)
        return kept[first:] if kept else None

    async def cancel(self, owner: str, response_id: str) -> InProgressResponse | StoredResponse:
        """Stop a response that is made in the background, and wait until it has ended."""
        found = await self.find(owner, response_id)
        stored = isinstance(found, StoredResponse)
        if stored and found.status in UNFINISHED:
            raise InvalidRequest(
                f"{response_id} is being made by another server of this store: stop it there"
            )
        background = msgspec.json.decode(found.body)["background"] if stored else found.response.background
        if not background:
            raise InvalidRequest(
                f"{response_id} was not made with background: true: close its connection to stop it"
            )
        if isinstance(found, InProgressResponse) and found.task is not None:
            found.task.cancel()
            await asyncio.wait([found.task])
        return found

    async def delete(self, owner: str, response_id: str) -> None:
        """Forget a response; one that is being made is stopped."""
        making = self.making.get(response_id)
        if making is not None and making.owner == owner:
            del self.making[response_id]
            if making.task is not None:
                making.task.cancel()
        if not await self._service.run_in_thread(lambda: self.store.delete(owner, response_id)):
            raise response_not_found(response_id)

    def context(self, owner: str, response_id: str) -> list[Item]:
        """All items of the conversation up to a response. Looks into the store: not for the event loop."""
        making = self.making.get(response_id)
        if making is not None and making.owner == owner:
            if not making.ended:
                raise _unfinished(response_id)
            first = making.response.previous_response_id
            before = [] if first is None else self.context(owner, first)
            return [*before, *making.inputs, *cast("list[Item]", making.response.output)]
        chain = self.store.chain(owner, response_id)
        if not chain:
            raise response_not_found(response_id, "previous_response_id")
        if chain[-1].status in UNFINISHED and not self.store.stale(chain[-1]):
            raise _unfinished(response_id)
        missing = chain[0].previous_id
        if missing is not None:
            raise NoSuchResponse(
                f"{response_id} continues {missing}, which was deleted or is too old: send the conversation "
                "as input",
                param="previous_response_id",
            )
        return [
            stored_item(item.body)
            for response in chain
            for output in (False, True)
            for item in self.store.items(response.id, output=output)
        ]

    def item(self, owner: str, item_id: str) -> Item | None:
        """A kept item by its id. Looks into the store: not for the event loop."""
        for making in list(self.making.values()):
            if making.owner == owner:
                for item in (*making.inputs, *making.response.output):
                    if item.id == item_id and item.status != "in_progress":
                        return item
        found = self.store.item(owner, item_id)
        return None if found is None else stored_item(found.body)

    def check_background(self, owner: str, account: Account) -> None:
        """Refuse one more in the background: their HTTP requests have ended and count no longer. Raises
        Overloaded or RateLimited."""
        owners = [making.owner for making in self.making.values() if making.response.background]
        if len(owners) >= MAX_BACKGROUND_RESPONSES:
            raise Overloaded(
                f"{MAX_BACKGROUND_RESPONSES} background responses are in progress, the maximum: try "
                "again later"
            )
        own, most = owners.count(owner), account.limits.concurrency
        if most is not None and own >= most:
            raise RateLimited(
                f"{own:,} responses of this key are being made in the background, at most {most:,} may be: "
                "wait for one to end",
                reason="key_concurrency",
            )

    async def _finish(self, making: InProgressResponse) -> None:
        response = making.response
        if response.id not in self.making:
            return
        output = [_kept(item) for item in response.output]
        body, events = _body(response), making.events

        def finish() -> None:
            self.store.finish(response.id, response.status, body, output, events)

        try:
            await self._service.run_in_thread(finish)
        except StoreError as error:
            LOG.error("%s; response %s is not kept", error.message, response.id)
        finally:
            self.making.pop(response.id, None)

    async def _keep_alive(self) -> None:
        """While anything is being made: tell other servers of the same store that it is."""
        while self.making:
            await asyncio.sleep(STALE_S / 5)
            try:
                await self._service.run_in_thread(lambda: self.store.still_made(list(self.making)))
            except StoreError as error:
                LOG.error("%s", error.message)

    def _current(self, owner: str, response_id: str) -> StoredResponse | None:
        """What the store has; one whose server has stopped has failed."""
        found = self.store.find(owner, response_id)
        if found is None or found.status not in UNFINISHED or not self.store.stale(found):
            return found
        body = cast("dict[str, Any]", msgspec.json.decode(found.body))
        body |= {"status": "failed", "error": {"code": "server_error", "message": INTERRUPTED}}
        self.store.finish(response_id, "failed", msgspec.json.encode(body), (), ())
        return self.store.find(owner, response_id)

    def _whole(self, found: StoredResponse) -> msgspec.Raw:
        body = cast("dict[str, Any]", msgspec.json.decode(found.body))
        body["output"] = [msgspec.Raw(item.body) for item in self.store.items(found.id, output=True)]
        return msgspec.Raw(msgspec.json.encode(body))


def get_response_manager(http: HttpRequest) -> ResponseManager:
    """The response manager of the app that `http` came to."""
    manager = http.app.state.responses
    assert isinstance(manager, ResponseManager)
    return manager


def response_not_found(response_id: str, param: str | None = None) -> NoSuchResponse:
    """The refusal of an id that is not one of this key's."""
    return NoSuchResponse(
        f"no response {response_id[:80]!r} is kept: it was not stored, was deleted, is too old, or is "
        "another key's",
        param=param,
    )


def _unfinished(response_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"response {response_id} has not ended yet: wait until it has", param="previous_response_id"
    )


def _body(response: ResponseObject) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(response, output=[]))


def _kept(item: Item | OutputItem) -> StoredItem:
    return StoredItem(item.id, msgspec.json.encode(item))
