"""The responses of a server: those that are being made, and those that are kept, as one.

What a response and its items look like is their surface's matter: here they are structs, or their JSON.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct, UnsetType, field

from headrace.errors import InvalidRequest, Overloaded, StoreError
from headrace.inference.accounts import Account, RateLimited
from headrace.inference.events import ParameterWarning
from headrace.inference.store_threads import StoreThreads
from headrace.storage.responses import STALE_S, Responses, StoredItem, StoredResponse
from headrace.storage.sql_store import SqlStore

LOG = logging.getLogger("headrace.responses")
UNFINISHED = ("queued", "in_progress")
BEAT_S = STALE_S / 5
"""How often other servers of the store hear of what is being made, and are heard."""
LOOK_S = 0.25
MAX_BACKGROUND_RESPONSES = 256  # at a time: each holds its events in memory until it has ended
INTERRUPTED = "the server stopped before this response had ended: make it again"


class NoSuchResponse(InvalidRequest):
    """No response of that id is kept for this key."""

    status = 404
    code = "response_not_found"


class ResponseItem(Protocol):
    """A struct: a message, a call, its output, or reasoning."""

    @property
    def id(self) -> str:
        """Unique among the items of its key."""
        ...

    @property
    def status(self) -> str:
        """in_progress, completed or incomplete."""
        ...


class ResponseInMaking(Protocol):
    """A struct whose fields change while it is made, and are encoded as they are."""

    store: bool
    warnings: list[ParameterWarning] | UnsetType

    @property
    def id(self) -> str:
        """The response's id."""
        ...

    @property
    def status(self) -> str:
        """One of UNFINISHED, or how it has ended."""
        ...

    @property
    def background(self) -> bool:
        """Whether it is made though no client waits for it."""
        ...

    @property
    def previous_response_id(self) -> str | None:
        """The response that it continues."""
        ...

    @property
    def output(self) -> Sequence[ResponseItem]:
        """Its items so far."""
        ...


R = TypeVar("R", bound=ResponseInMaking)


class InProgressResponse(Struct, Generic[R], eq=False):
    """A response that is being made, or is on its way into the store."""

    response: R
    account: Account
    owner: str
    inputs: Sequence[ResponseItem]
    time_s: Callable[[], float] = time.time
    events: list[bytes] = field(default_factory=list[bytes])  # of one in the background
    task: asyncio.Task[None] | None = None  # that makes it in the background
    is_stored: bool = False  # as one that is being made
    more: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there are new events; then another takes its place."""

    def emit(self, event: bytes) -> None:
        """Hold an event, as the stream has it, for those who read the stream."""
        self.events.append(event)
        self.more.set()
        self.more = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the response is what it will be."""
        return self.response.status not in UNFINISHED


class ResponseStore:
    """Where responses are found. Lives on the event loop; what looks into the store is off it."""

    def __init__(self, database: SqlStore, threads: StoreThreads) -> None:
        self._threads = threads
        self.store = Responses(database, database.shared_clock or time.time)
        self.making: dict[str, InProgressResponse[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._beat: asyncio.Task[None] | None = None

    async def begin(self, making: InProgressResponse[Any]) -> None:
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
            await self._threads.run(add)
        except StoreError as error:
            self.making.pop(response.id)
            if response.background:
                raise
            LOG.error("%s; response %s is not kept", error.message, response.id)
            response.store = False
            warnings: list[ParameterWarning] = response.warnings or []
            response.warnings = [*warnings, ParameterWarning("store", f"not kept: {error.message}")]
            return
        making.is_stored = True
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._keep_alive())

    def ended(self, making: InProgressResponse[Any]) -> asyncio.Task[None]:
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

    async def find(self, owner: str, response_id: str) -> InProgressResponse[Any] | StoredResponse:
        """A response by its id, as it is now; raises NoSuchResponse."""
        making = self.making.get(response_id)
        if making is not None and making.owner == owner:
            return making
        found = await self._threads.run(lambda: self._current(owner, response_id))
        if found is None:
            raise response_not_found(response_id)
        return found

    async def shown(self, found: InProgressResponse[Any] | StoredResponse) -> msgspec.Struct | msgspec.Raw:
        """The response's JSON."""
        if isinstance(found, InProgressResponse):
            return found.response
        return await self._threads.run(lambda: self._whole(found))

    async def inputs(self, found: InProgressResponse[Any] | StoredResponse) -> list[StoredItem]:
        """The items of the request that made the response."""
        if isinstance(found, InProgressResponse):
            return [_kept(item) for item in found.inputs]
        return await self._threads.run(lambda: self.store.items(found.id, output=False))

    def events(self, found: StoredResponse, first: int) -> list[bytes] | None:
        """The events from number `first` on of one that was made in the background; None where it was not.

        Looks into the store: not for the event loop.
        """
        kept = self.store.events(found.id, -1)
        return kept[first:] if kept else None

    async def cancel(self, owner: str, response_id: str) -> InProgressResponse[Any] | StoredResponse:
        """Stop a response that is made in the background, and wait until it has ended."""
        found = await self.find(owner, response_id)
        stored = isinstance(found, StoredResponse)
        background = msgspec.json.decode(found.body)["background"] if stored else found.response.background
        if not background:
            raise InvalidRequest(
                f"{response_id} was not made with background: true: close its connection to stop it"
            )
        if isinstance(found, InProgressResponse) and found.task is not None:
            found.task.cancel()
            await asyncio.wait([found.task])
        if isinstance(found, StoredResponse) and found.status in UNFINISHED:
            return await self._cancelled_elsewhere(owner, response_id)
        return found

    async def _cancelled_elsewhere(self, owner: str, response_id: str) -> StoredResponse:
        """Stop a response that another server of this store makes, which it hears with its next sign of life;
        one that gives none has stopped itself."""
        await self._threads.run(lambda: self.store.ask_cancel(response_id))
        while True:
            found = await self._threads.run(lambda: self._current(owner, response_id))
            if found is None:
                raise response_not_found(response_id)
            if found.status not in UNFINISHED:
                return found
            await asyncio.sleep(LOOK_S)

    async def delete(self, owner: str, response_id: str) -> None:
        """Forget a response; one that is being made is stopped."""
        making = self.making.get(response_id)
        if making is not None and making.owner == owner:
            del self.making[response_id]
            if making.task is not None:
                making.task.cancel()
        if not await self._threads.run(lambda: self.store.delete(owner, response_id)):
            raise response_not_found(response_id)

    def context(self, owner: str, response_id: str) -> list[StoredItem]:
        """All items of the conversation up to a response. Looks into the store: not for the event loop."""
        making = self.making.get(response_id)
        if making is not None and making.owner == owner:
            if not making.ended:
                raise _unfinished(response_id)
            first = making.response.previous_response_id
            before = [] if first is None else self.context(owner, first)
            return [*before, *map(_kept, (*making.inputs, *making.response.output))]
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
            item
            for response in chain
            for output in (False, True)
            for item in self.store.items(response.id, output=output)
        ]

    def item(self, owner: str, item_id: str) -> StoredItem | None:
        """A kept item by its id. Looks into the store: not for the event loop."""
        for making in list(self.making.values()):
            if making.owner == owner:
                for item in (*making.inputs, *making.response.output):
                    if item.id == item_id and item.status != "in_progress":
                        return _kept(item)
        return self.store.item(owner, item_id)

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

    async def _finish(self, making: InProgressResponse[Any]) -> None:
        response = making.response
        if response.id not in self.making:
            return
        output = [_kept(item) for item in response.output]
        body, events = _body(response), making.events

        def finish() -> None:
            self.store.finish(response.id, response.status, body, output, events)

        try:
            await self._threads.run(finish)
        except StoreError as error:
            LOG.error("%s; response %s is not kept", error.message, response.id)
        finally:
            self.making.pop(response.id, None)

    async def _keep_alive(self) -> None:
        """While anything is being made: tell other servers of the same store that it is, and hear what they
        were asked to stop."""
        while self.making:
            await asyncio.sleep(BEAT_S)
            stored = [name for name, making in self.making.items() if making.is_stored and not making.ended]
            try:
                stopped = await self._threads.run(lambda names=stored: self.store.still_made(names))
            except StoreError as error:
                LOG.error("%s", error.message)
                continue
            for name in stopped:
                making = self.making.get(name)
                if making is not None and making.task is not None:
                    making.task.cancel()

    def _current(self, owner: str, response_id: str) -> StoredResponse | None:
        """What the store has; one whose server has stopped has failed."""
        found = self.store.find(owner, response_id)
        if found is None or found.status not in UNFINISHED or not self.store.stale(found):
            return found
        body = cast("dict[str, Any]", msgspec.json.decode(found.body))
        body |= {"status": "failed", "error": {"code": "server_error", "message": INTERRUPTED}}
        self.store.fail_stale(found, msgspec.json.encode(body))
        return self.store.find(owner, response_id)

    def _whole(self, found: StoredResponse) -> msgspec.Raw:
        body = cast("dict[str, Any]", msgspec.json.decode(found.body))
        body["output"] = [msgspec.Raw(item.body) for item in self.store.items(found.id, output=True)]
        return msgspec.Raw(msgspec.json.encode(body))


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


def _body(response: ResponseInMaking) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(cast("Struct", response), output=[]))


def _kept(item: ResponseItem) -> StoredItem:
    return StoredItem(item.id, msgspec.json.encode(item))
