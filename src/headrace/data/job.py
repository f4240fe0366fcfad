"""What goes to a worker and comes back, as MessagePack."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from headrace.data.source import Source
from headrace.storage.request_log import LoggedRequest

Format = Literal["json", "csv", "arrow"]
Problem = Literal["refused", "failed", "source", "limit"]
"""Of a failure: the guard's, the statement's, a dataset's, a limit's."""


class View(Struct, frozen=True):
    """A dataset as a statement sees it: `columns` (None: all) and rows by `where` (None: all)."""

    name: str
    source: Source
    columns: tuple[str, ...] | None = None
    where: str | None = None


class Query(Struct, frozen=True, kw_only=True, tag="query"):
    """A statement over views. `parameters` stand for ? or $1; `seconds` is the time on the clock.
    `explain` answers with the plan instead, `describe` with no rows. With `models` the statement may call
    functions that models answer, with `searches` those that indexes do; with `planned` they get their rows
    before it runs, as far as a plan can be made. With `history` it may read these requests as
    headrace.task_history."""

    sql: str
    views: tuple[View, ...]
    parameters: tuple[str | int | float | bool | None, ...] = ()
    format: Format = "arrow"
    rows: int = 100_000
    bytes: int = 2**26
    seconds: float = 30.0
    memory: int = 2**30
    explain: bool = False
    describe: bool = False
    models: bool = False
    searches: bool = False
    planned: bool = True
    history: tuple[LoggedRequest, ...] | None = None


class Copy(Struct, frozen=True, kw_only=True, tag="copy"):
    """A copy of a dataset into the table `data` of a new file of DuckDB. With `later_than`, rows whose
    column is later than the file's latest are added to it."""

    view: View
    path: str
    later_than: str | None = None
    seconds: float = 3600.0
    memory: int = 2**32


class Column(Struct, frozen=True):
    """A column of a reply, with DuckDB's name of its type."""

    name: str
    type: str


class AiUsage(Struct, frozen=True, kw_only=True):
    """What models have done for a statement: `rows` of arguments were asked for, of which `computed` were not
    known; `failed` have no value. `unplanned` calls got their rows as the statement ran."""

    rows: int
    computed: int
    prompt_tokens: int
    output_tokens: int
    failed: int = 0
    unplanned: int = 0


class CallCost(Struct, frozen=True, kw_only=True):
    """What a call will take of models: of `rows` different rows of arguments `known` have values already.
    Tokens of prompts are exact unless `prompt_exact` is false, which makes them a bound, as those of output
    are; `requests` are what they come in. Where `exact` is false there are at most so many
    rows, or, with `rows` None, as many as the statement comes to, and `reason` says why. `seconds` and `usd`
    are predicted from what was measured before; None where nothing was, or no price is set. Of a remote model
    tokens of prompts are a bound by the bytes that are sent, beside an estimate, and `usd` is the most that
    all can cost; `unpriced` says why it is not known."""

    function: str
    model: str | None
    rows: int | None = None
    known: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    exact: bool = True
    prompt_exact: bool = True
    reason: str = ""
    seconds: float | None = None
    usd: float | None = None
    estimated_prompt_tokens: int | None = None
    unpriced: str = ""


class Phase(Struct, frozen=True, array_like=True):
    """What the process of a statement did, in seconds of the monotonic clock, which all processes share."""

    name: str
    start_s: float
    end_s: float


class SqlAnswer(Struct, frozen=True, tag="answer"):
    """The rows of a statement in the format asked for. `warnings` and `usage` are of functions that models
    answer, `costs` with a plan what they will take, `phases` are those of its process."""

    columns: tuple[Column, ...]
    rows: int
    body: bytes
    datasets: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    usage: AiUsage | None = None
    costs: tuple[CallCost, ...] = ()
    phases: tuple[Phase, ...] = ()


class SqlFailure(Struct, frozen=True, tag="failure"):
    """Why there is no answer; `dataset` is whose source failed."""

    problem: Problem
    message: str
    dataset: str | None = None


Job = Query | Copy
Reply = SqlAnswer | SqlFailure

encode_job = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
