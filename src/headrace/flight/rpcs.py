"""The calls of Flight that Flight SQL needs, each answered by endpoints of HTTP.

Of a client nothing is kept from one call to the next.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp

from headrace.flight.commands import (
    Command,
    Listing,
    PreparedStatement,
    SqlInfo,
    Statement,
    Tables,
    UnknownCommand,
    bound,
    command_of,
    prepared,
    ticket_of,
    to_prepare,
)
from headrace.flight.http_calls import Caller, CallRefused, call_http
from headrace.flight.parameters import ParametersRead
from headrace.flight.stream import as_stream, descriptor_command, flight_data, schema_of
from headrace.flight.tables import chosen, listing, sql_info, tables
from headrace.flight.wire import NotMessage, last, pack, text, unpack
from headrace.isolation.child import IsolatedProcess, LimitExceeded, WorkFailed
from headrace.isolation.limits import ProcessLimits
from headrace.struct_types import thread_safe

MAX_MESSAGE = 1 << 22
"""Bytes of one message, and of all messages that bind parameters."""
MAX_UPLOADED = 64
UPLOAD_S = 10.0
"""Until a client has sent all that belongs to a call."""
WRITE_S = 60.0
"""Until a client takes one more message."""
MAX_SCHEMAS = 256
"""Datasets whose columns one call lists."""
LIMITS = ProcessLimits(5.0, 2**28)
ARROW = "application/vnd.apache.arrow.stream"
CREATE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
_DATASETS, _SQL = "/v1/datasets", "/v1/sql"


class Refused(Exception):
    """A call ends with a status of gRPC, by its name, and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class _Named(Struct):
    name: str


class FlightCalls:
    """Answers messages as bytes. Lives on the event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._parameters = IsolatedProcess("headrace.flight.parameters")

    def close(self) -> None:
        """End the process that reads parameters."""
        self._parameters.close()

    async def only(self, sent: AsyncIterator[bytes], caller: Caller) -> bytes:
        """The message of a call that has one; nothing is awaited of a caller without a key."""
        await self._names(caller)
        try:
            message = await asyncio.wait_for(anext(sent, None), UPLOAD_S)
        except TimeoutError:
            raise Refused("DEADLINE_EXCEEDED", f"the message did not come within {UPLOAD_S:g} s") from None
        if message is None:
            raise NotMessage("nothing was sent")
        return message

    async def info(self, descriptor: bytes, caller: Caller) -> bytes:
        """FlightInfo of a command: how to get its rows."""
        sent = descriptor_command(descriptor)
        command = command_of(sent)
        ticket = pack((1, ticket_of(command, sent)))
        return pack((2, descriptor), (3, pack((1, ticket))), (4, -1), (5, -1))

    async def schema(self, descriptor: bytes, caller: Caller) -> bytes:
        """SchemaResult of a command."""
        stream = await self._rows(command_of(descriptor_command(descriptor)), caller, describe=True)
        return pack((1, schema_of(stream)))

    async def rows(self, ticket: bytes, caller: Caller) -> AsyncIterator[bytes]:
        """The rows of a ticket, as messages FlightData."""
        stream = await self._rows(command_of(last(unpack(ticket), 1, b"")), caller)
        for message in flight_data(stream):
            yield message

    async def action(self, action: bytes, caller: Caller) -> list[bytes]:
        """The results of an action, as messages Result."""
        fields = unpack(action)
        kind, body = text(last(fields, 1, b"")), last(fields, 2, b"")
        if kind == CLOSE:
            return []
        if kind != CREATE:
            raise UnknownCommand(f"there is no action {kind[:100]!r}: statements can read only")
        statement = to_prepare(body)
        schema = schema_of(await self._statement(statement, caller, describe=True))
        return [pack((1, prepared(statement, schema, b"")))]

    def actions(self) -> list[bytes]:
        """The actions that there are, as messages ActionType."""
        return [pack((1, CREATE), (2, "Prepare a statement.")), pack((1, CLOSE), (2, "Forget one."))]

    async def put(self, sent: AsyncIterator[bytes], caller: Caller) -> bytes:
        """Bind the parameters that a client sends to its statement: a PutResult."""
        await self._names(caller)
        messages = await _uploaded(sent)
        if not messages:
            raise NotMessage("nothing was sent")
        command = command_of(descriptor_command(last(unpack(messages[0]), 1, b"")))
        if not isinstance(command, PreparedStatement):
            raise UnknownCommand("only parameters of statements are taken: statements can read only")
        read = await asyncio.to_thread(self._read, as_stream(messages))
        if read.error:
            raise NotMessage(f"the parameters cannot be read: {read.error}")
        statement = Statement(command.statement.sql, read.values)
        return pack((1, bound(statement)))

    async def login(self, caller: Caller) -> str:
        """The authorization of further calls, for a client that sent user and password, which is the key."""
        sent = [value for name, value in caller.headers if name == b"authorization"]
        scheme, _, encoded = (sent[0].decode("latin-1") if len(sent) == 1 else "").partition(" ")
        if scheme.lower() == "bearer":
            own = sent[0].decode("latin-1")
        else:
            own = f"Bearer {_password(scheme, encoded)}"
        await self._names(Caller([(b"authorization", own.encode("latin-1"))], caller.address))
        return own

    async def _rows(self, command: Command, caller: Caller, *, describe: bool = False) -> bytes:
        """An Arrow stream with what a command asks for."""
        if isinstance(command, PreparedStatement):
            command = command.statement
        if isinstance(command, Statement):
            return await self._statement(command, caller, describe=describe)
        names = await self._names(caller)
        if isinstance(command, SqlInfo):
            return sql_info(command)
        if isinstance(command, Tables):
            return await self._tables(command, names, caller)
        assert isinstance(command, Listing)
        return listing(command.kind)

    async def _tables(self, asked: Tables, names: Sequence[str], caller: Caller) -> bytes:
        found = chosen(asked, names)
        if not asked.with_columns:
            return tables(found, None)
        if len(found) > MAX_SCHEMAS:
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"columns of {len(found):,} datasets are asked for, at most {MAX_SCHEMAS:,} are given: name"
                " fewer of them",
            )
        there: list[str] = []
        schemas: list[bytes] = []
        for name in found:
            try:
                stream = await self._statement(Statement(f'SELECT * FROM "{name}"'), caller, describe=True)
            except CallRefused as error:
                if error.status != 502:
                    raise
                continue  # its source is down: others are listed
            there.append(name)
            schemas.append(schema_of(stream))
        return tables(there, schemas)

    async def _statement(self, statement: Statement, caller: Caller, *, describe: bool = False) -> bytes:
        body = {"sql": statement.sql, "parameters": statement.parameters}
        return await call_http(
            self._app,
            caller,
            "POST",
            _SQL,
            body=msgspec.json.encode({**body, "describe": True} if describe else body),
            headers={"content-type": "application/json", "accept": ARROW},
        )

    async def _names(self, caller: Caller) -> list[str]:
        """The datasets that the caller's key reads; CallRefused where it has no key of this server."""
        found = await call_http(self._app, caller, "GET", _DATASETS)
        return [one.name for one in msgspec.json.decode(found, type=thread_safe(list[_Named]))]

    def _read(self, stream: bytes) -> ParametersRead:
        try:
            got = self._parameters.call(stream, LIMITS, wait_s=UPLOAD_S)
        except LimitExceeded as error:
            raise NotMessage(f"the parameters take more than {error.what} to read") from None
        except WorkFailed:
            raise NotMessage("the parameters cannot be read") from None
        return msgspec.msgpack.decode(got, type=thread_safe(ParametersRead))


async def _uploaded(sent: AsyncIterator[bytes]) -> list[bytes]:
    """All messages of a client; Refused where they are too many, too large or too slow."""
    messages: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(UPLOAD_S):
            async for message in sent:
                messages.append(message)
                size += len(message)
                if len(messages) > MAX_UPLOADED or size > MAX_MESSAGE:
                    raise Refused(
                        "RESOURCE_EXHAUSTED", f"parameters of at most {MAX_MESSAGE:,} bytes are taken"
                    )
    except TimeoutError:
        raise Refused("DEADLINE_EXCEEDED", f"parameters did not come within {UPLOAD_S:g} s") from None
    return messages


def _password(scheme: str, encoded: str) -> str:
    if scheme.lower() != "basic":
        raise Refused("UNAUTHENTICATED", "send 'Authorization: Bearer KEY', or the key as the password")
    try:
        padded = encoded + "=" * (-len(encoded) % 4)  # ADBC's driver leaves it out
        return base64.b64decode(padded, validate=True).decode("latin-1").partition(":")[2]
    except binascii.Error:
        raise Refused("UNAUTHENTICATED", "user and password cannot be read") from None
