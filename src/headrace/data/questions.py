"""What the process of a statement asks of models, and what it is told, as MessagePack.

The process is not trusted: what comes from it is decoded strictly, and everything in it is checked here and
by the operators.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

MAX_CALLS = 64
"""Different calls of functions of models in one statement."""
MAX_SEARCHES = 16
"""Different ones in one statement."""
MAX_ARGUMENTS = 32
MAX_ROWS = 65_536
"""Rows of arguments in one question."""

Plain = str | int | float | bool | None
Constant = Plain | list[Any] | dict[str, Any]
"""Lists and objects hold constants."""
Text = str | None
Value = Plain | bytes | list[Any] | dict[str, Any]
"""Of a function. Vectors are bytes: float32 numbers, the lowest byte first."""
Row = Annotated[tuple[Text, ...], Meta(max_length=MAX_ARGUMENTS)]


class Argument(Struct, frozen=True, array_like=True):
    """An argument of a call: a constant, or what differs from row to row."""

    constant: bool
    value: Constant = None


class CallSite(Struct, frozen=True, kw_only=True):
    """A call as it stands in a statement: constants and, of what varies, the place. `options` are named."""

    function: str
    arguments: Annotated[tuple[Argument, ...], Meta(max_length=MAX_ARGUMENTS)]
    options: dict[str, Constant] = {}


class Declare(Struct, frozen=True, tag="declare"):
    """The first question: the calls of a statement. The answer is `Declared`."""

    calls: Annotated[tuple[CallSite, ...], Meta(max_length=MAX_CALLS)]


class Compute(Struct, frozen=True, tag="compute"):
    """Values of a call for rows of arguments, no row twice. The answer is a list with a value for each.

    With `planned` they are what a plan says will be needed, in the order in which it is. `exact` says that no
    other rows can be needed; without it they are at most so many.
    """

    call: int
    rows: Annotated[list[Row], Meta(max_length=MAX_ROWS)]
    planned: bool = False
    exact: bool = True


class Dropped(Struct, frozen=True, tag="dropped"):
    """A plan for a call could not be made or failed, and is dropped: its rows are computed as they come."""

    call: int
    reason: Annotated[str, Meta(max_length=200)]


class FindHits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="search"):
    """A search over an index, by the `function` of SQL that it stands for. The answer is its rows as JSON."""

    function: str
    index: Annotated[str, Meta(max_length=200)]
    text: str
    top: int = 10
    filter: str | None = None
    rerank: str | None = None


class CallType(Struct, frozen=True, array_like=True):
    """DuckDB's type of a call, which of its arguments vary (their values are the rows), and, of a condition,
    how many rows a first wave has; 0: it is none. `max_rows` bounds its different rows; 0: no bound
    besides the limits."""

    type: str
    varying: tuple[int, ...]
    wave: int = 0
    max_rows: int = 0


Question = Declare | Compute | Dropped | FindHits

encode_question = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder(Question).decode
encode_answer = msgspec.msgpack.Encoder().encode
decode_types = msgspec.msgpack.Decoder(list[CallType]).decode
decode_values = msgspec.msgpack.Decoder(list[Any]).decode


def too_many_rows(function: str, most: int) -> str:
    """What is wrong with more different rows of a call than `CallType.max_rows`."""
    return (
        f"{function}() has more than {most:,} different pairs to ask for, which max_pairs allows: add a"
        " condition that leaves fewer, such as a key that both tables have, or raise max_pairs"
    )
