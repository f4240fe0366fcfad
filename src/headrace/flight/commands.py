"""What clients of Flight SQL ask for: its commands, tickets and prepared statements as they are sent.

Messages: https://arrow.apache.org/docs/format/FlightSql.html. A prepared statement is its own handle, so the
server keeps nothing between calls.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from headrace.flight.wire import NotMessage, last, numbers, pack, text, unpack

_ANY = "type.googleapis.com/arrow.flight.protocol.sql."
Value = str | int | float | bool | None
Listed = Literal[
    "CommandGetCatalogs",
    "CommandGetDbSchemas",
    "CommandGetTableTypes",
    "CommandGetPrimaryKeys",
    "CommandGetExportedKeys",
    "CommandGetImportedKeys",
    "CommandGetCrossReference",
]
LISTED: tuple[Listed, ...] = Listed.__args__  # type: ignore[attr-defined]


class Statement(Struct, frozen=True, array_like=True):
    """A statement, with values for its parameters once they are bound."""

    sql: str
    parameters: tuple[Value, ...] = ()


class PreparedStatement(Struct, frozen=True):
    """A statement by its handle."""

    statement: Statement


class SqlInfo(Struct, frozen=True):
    """What the server can; no numbers: all of it."""

    wanted: tuple[int, ...]


class Tables(Struct, frozen=True):
    """The tables whose names match SQL's pattern (None: all), also with their columns."""

    catalog: str | None
    schema: str | None
    pattern: str | None
    types: tuple[str, ...]
    with_columns: bool


class Listing(Struct, frozen=True):
    """A table of what there is, without conditions."""

    kind: Listed


Command = Statement | PreparedStatement | SqlInfo | Tables | Listing
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Statement)


class UnknownCommand(Exception):
    """A command that this server has not."""


def any_of(name: str, message: bytes) -> bytes:
    """A message within google.protobuf.Any."""
    return pack((1, _ANY + name), (2, message))


def opened(data: bytes) -> tuple[str, bytes]:
    """The name and the bytes of such a message."""
    fields = unpack(data)
    address = text(last(fields, 1, b""))
    if not address.startswith(_ANY):
        raise UnknownCommand("it is no command of Flight SQL")
    return address.removeprefix(_ANY), last(fields, 2, b"")


def handle_of(statement: Statement) -> bytes:
    """The handle of a statement."""
    return _encoder.encode(statement)


def statement_of(handle: bytes) -> Statement:
    """The statement of a handle; NotMessage where it is none of ours."""
    try:
        return _decoder.decode(handle)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise NotMessage("it is no handle of a statement of this server") from None


def ticket_of(command: Command, sent: bytes) -> bytes:
    """The ticket that gives what a command asks for; `sent` is the command as it came."""
    if isinstance(command, PreparedStatement):
        command = command.statement
    if isinstance(command, Statement):
        return any_of("TicketStatementQuery", pack((1, handle_of(command))))
    return sent


def command_of(data: bytes) -> Command:
    """A command or a ticket. Raises NotMessage or UnknownCommand."""
    name, message = opened(data)
    fields = unpack(message)
    if name == "CommandStatementQuery":
        _check_no_transaction(last(fields, 2, b""))
        return Statement(text(last(fields, 1, b"")))
    if name == "TicketStatementQuery":
        return statement_of(last(fields, 1, b""))
    if name == "CommandPreparedStatementQuery":
        return PreparedStatement(statement_of(last(fields, 1, b"")))
    if name == "CommandGetSqlInfo":
        return SqlInfo(tuple(numbers(fields.get(1, ()))))
    if name == "CommandGetTables":
        types = tuple(text(one) for one in fields.get(4, ()) if isinstance(one, bytes))
        return Tables(
            *(text(last(fields, number, b"")) if number in fields else None for number in (1, 2, 3)),
            types=types,
            with_columns=bool(last(fields, 5, 0)),
        )
    for listed in LISTED:
        if name == listed:
            return Listing(listed)
    raise UnknownCommand(f"{name} is not answered here: statements can read only")


def to_prepare(body: bytes) -> Statement:
    """The statement that ActionCreatePreparedStatementRequest has."""
    fields = unpack(_within(body, "ActionCreatePreparedStatementRequest"))
    _check_no_transaction(last(fields, 2, b""))
    return Statement(text(last(fields, 1, b"")))


def prepared(statement: Statement, schema: bytes, parameters: bytes) -> bytes:
    """ActionCreatePreparedStatementResult; the schemas are messages of Arrow."""
    message = pack((1, handle_of(statement)), (2, schema), (3, parameters))
    return any_of("ActionCreatePreparedStatementResult", message)


def bound(statement: Statement) -> bytes:
    """DoPutPreparedStatementResult: the handle of a statement with its parameters."""
    return pack((1, handle_of(statement)))


def _within(body: bytes, expected: str) -> bytes:
    name, message = opened(body)
    if name != expected:
        raise UnknownCommand(f"the action needs {expected}, not {name[:100]}")
    return message


def _check_no_transaction(transaction: bytes) -> None:
    if transaction:
        raise UnknownCommand("there are no transactions here: statements can read only")
