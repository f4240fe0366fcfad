"""Runs statements over the datasets, in workers under limits."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.config.datasets import SqlLimits, SqlSettings, read_datasets, read_sql
from headrace.config.secrets import KeyOf, without
from headrace.data.accelerate import Copies
from headrace.data.answering import Answering
from headrace.data.catalogue import Catalogue, Dataset
from headrace.data.extensions import check_engine
from headrace.data.guard import StatementRefused
from headrace.data.job import AiUsage, Format, Job, Phase, Query, Reply, SqlAnswer, decode_reply, encode_job
from headrace.data.limits import AiBudget, AiLimits, Speeds, SqlLimit
from headrace.data.model_work import Models
from headrace.data.source import quoted
from headrace.data.source_probes import PROBE_S, SourceProbes
from headrace.errors import HeadraceError, InvalidRequest, Overloaded, UsageError
from headrace.inference.call_context import CallContext, StageNote
from headrace.isolation.child import IsolatedProcess, LimitExceeded, WorkFailed, WorkLost, WorkStop
from headrace.isolation.limits import ProcessLimits
from headrace.search.indexes import Indexes
from headrace.storage.request_log import LoggedRequest
from headrace.storage.sql_memo import SqlMemo, memo_file
from headrace.telemetry.explain_node import Stage

Parameter = str | int | float | bool | None
SQL = "sql"
"""The name of the stage that a statement is."""
GRACE_S = 10.0
"""After the worker's own limit, until it is given up."""


class SqlFailed(InvalidRequest):
    """DuckDB cannot run a statement: a name, a type or a value is wrong."""

    remedy = "Correct the statement where the message says."
    code = "sql_failed"


class SourceDown(HeadraceError):
    """A dataset cannot be opened: its server is down, its file is missing or damaged, its schema changed."""

    remedy = "Check the dataset that the message names; statements over others go on."
    status = 502
    code = "dataset_unavailable"


class AiWishes(Struct, frozen=True, kw_only=True):
    """What a statement may take of models, at most what its key may. `max_cost` is in dollars, of which
    an hour of this machine costs `usd_per_hour`. `planned` False leaves out the plan."""

    max_tokens: int | None = None
    max_ai_rows: int | None = None
    max_cost: float | None = None
    usd_per_hour: float | None = None
    planned: bool = True

    def within(self, limits: SqlLimits) -> AiLimits:
        """The lower of both."""
        rows, tokens = self.max_ai_rows, self.max_tokens
        return AiLimits(
            rows=limits.ai_rows if rows is None else min(rows, limits.ai_rows),
            tokens=limits.ai_tokens if tokens is None else min(tokens, limits.ai_tokens),
            seconds=limits.ai_seconds,
            max_usd=self.max_cost,
            usd_per_hour=self.usd_per_hour,
            names=(
                "sql.ai_rows" if rows is None or rows > limits.ai_rows else "max_ai_rows",
                "sql.ai_tokens" if tokens is None or tokens > limits.ai_tokens else "max_tokens",
            ),
        )


NO_WISHES = AiWishes()


class DataEngine:
    """Datasets and the process that reads them. Thread-safe."""

    def __init__(
        self,
        datasets: Mapping[str, object] | None,
        sql: Mapping[str, object] | None,
        cache: Path,
        key_of: KeyOf | None = None,
        *,
        memo: Path | None = None,
    ) -> None:
        """`memo` is the file with values of models; None: one in `cache`. UsageError where a setting is
        wrong, ExtraMissing where an extra is not installed."""
        check_engine()
        self.limits: SqlSettings = read_sql(sql)
        self.catalogue = Catalogue(read_datasets(datasets), cache / "datasets", key_of)
        paths = encode_paths(self.catalogue.extensions())
        self._process = IsolatedProcess("headrace.data.worker", lambda: paths)
        self._lock = threading.Lock()
        self._running: Counter[str | None] = Counter()
        self._retired = False
        self.copies = Copies(self.catalogue, self._run)
        self._probes = SourceProbes(self._open)
        self.memo = SqlMemo(memo or memo_file(cache / "headrace.sqlite3"), self.limits.everyone.ai_memo)
        self._speeds = Speeds(self.memo)

    def sql(
        self,
        sql: str,
        parameters: Sequence[Parameter] = (),
        *,
        format: Format = "arrow",
        key: str | None = None,
        role: str | None = None,
        ruled: bool = True,
        rows: int | None = None,
        explain: bool = False,
        describe: bool = False,
        stop: WorkStop | None = None,
        models: Models | None = None,
        wishes: AiWishes = NO_WISHES,
        call: CallContext | None = None,
        history: Sequence[LoggedRequest] | None = None,
        indexes: Indexes | None = None,
    ) -> SqlAnswer:
        """The rows of a SELECT, or its plan with `explain`, or with `describe` just its columns.

        `key` is the name of the API key, whose limits and role hold, unless `role` is given; without `ruled`
        all rows and columns are seen. `rows` lowers the limit of rows, `stop` ends the statement. `models`
        answer functions such as ai(), within `wishes`. The statement is a stage of `call`. It may read
        `history` as headrace.task_history, and search `indexes`.

        Raises StatementRefused, SqlFailed, SqlLimit, SourceDown or Overloaded.
        """
        limits = self.limits.of(key)
        with _stage(call, sql) as note, self._place(key, limits):
            try:
                views, secrets = self.catalogue.views(role or limits.role, sql, ruled=ruled)
            except UsageError as error:  # a secret is not there
                raise SourceDown(error.message) from None
            self.copies.make(views, sql)
            if explain and any(view.where is not None or view.columns is not None for view in views):
                raise InvalidRequest("a plan would tell the rules of datasets: this key has such rules")
            most = limits.rows if rows is None else min(rows, limits.rows)
            query = Query(
                sql=sql,
                views=views,
                parameters=tuple(parameters),
                format=format,
                rows=most,
                bytes=limits.bytes,
                seconds=limits.seconds,
                memory=limits.memory,
                explain=explain,
                describe=describe,
                models=models is not None,
                searches=models is not None and indexes is not None,
                planned=wishes.planned and not describe,
                history=None if history is None else tuple(history),
            )
            if models is None:
                return _noted(call, note, self._run(query, secrets, stop))
            stop = stop or WorkStop()
            budget = AiBudget(wishes.within(limits))
            answering = Answering(
                *(models, self.memo, budget, stop, self._speeds, indexes), explain=explain, call=call
            )
            answer = _noted(call, note, self._run(query, secrets, stop, answering))
            return answer if answering.work is None else _with_usage(answer, answering)

    def errors(self, role: str | None) -> dict[str, str]:
        """Why datasets that a role may see cannot be read, by their names: their sources are asked, or what
        they said some seconds ago holds. Those with local copies are read from these."""
        seen = [one for one in self.catalogue if self.catalogue.visible(one, role)]
        names = {one.name for one in seen}
        found = self._probes.errors(one for one in seen if one.copy is None)
        copies = {name for name in self.copies.errors if name in names}
        return found | dict.fromkeys(copies, "its local copy could not be made anew")

    def _open(self, dataset: Dataset) -> None:
        """Open a dataset and read nothing; raises SourceDown, which does not have its secret."""
        limits = self.limits.everyone
        try:
            view, secrets = self.catalogue.view(dataset, None, ruled=False)
        except UsageError as error:
            raise SourceDown(error.message) from None
        query = Query(
            sql=f"SELECT * FROM {quoted(dataset.name)} LIMIT 0",
            views=(view,),
            parameters=(),
            format="json",
            rows=1,
            bytes=limits.bytes,
            seconds=PROBE_S,
            memory=limits.memory,
        )
        try:
            self._run(query, secrets)
        except SqlLimit:
            raise SourceDown(
                f"dataset {dataset.name!r} did not open in {PROBE_S:g} s and {limits.memory >> 20:,} MiB"
            ) from None

    def close(self) -> None:
        """End the process."""
        self._process.close()
        self.memo.close()

    def retire(self) -> None:
        """End the process when the statements that run have ended."""
        with self._lock:
            self._retired = True
        self._close_retired()

    def _close_retired(self) -> None:
        with self._lock:
            idle = self._retired and not self._running.total()
        if idle:
            self.close()

    def _run(
        self,
        job: Job,
        secrets: set[str],
        stop: WorkStop | None = None,
        answering: Answering | None = None,
    ) -> SqlAnswer:
        limits = ProcessLimits(job.seconds * 2 + 1, job.memory)  # the time on the clock comes first
        answer, began_s = None if answering is None else answering.answer, time.monotonic()
        try:
            got = self._process.call(
                encode_job(job), limits, wait_s=job.seconds + GRACE_S, stop=stop, answer=answer
            )
        except LimitExceeded as error:
            raise SqlLimit(_limit(error, job)) from None
        except WorkLost:
            raise Overloaded("the process of the statement was ended from outside: send it again") from None
        except WorkFailed:
            raise SqlFailed("the statement ended the process of the engine: simplify it") from None
        reply = decode_reply(got)
        if isinstance(reply, SqlAnswer):
            started_s = reply.phases[0].start_s if reply.phases else began_s
            return replace(reply, phases=(Phase("start process", began_s, started_s), *reply.phases))
        if isinstance(job, Query) and reply.dataset in self.copies.errors:
            raise SourceDown(self.copies.errors[reply.dataset])  # why its copy is not there
        raise _error(reply, secrets)

    @contextmanager
    def _place(self, key: str | None, limits: SqlLimits) -> Generator[None]:
        with self._lock:
            if self._running[key] >= limits.parallel:
                raise Overloaded(
                    f"{limits.parallel} statements of this key run already: send it again later",
                    reason="sql",
                )
            self._running[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[key] -= 1
            self._close_retired()


@contextmanager
def _stage(call: CallContext | None, sql: str) -> Generator[StageNote]:
    with nullcontext(StageNote({})) if call is None else call.stage(SQL) as note:
        note.input = sql
        yield note


def _noted(call: CallContext | None, note: StageNote, answer: SqlAnswer) -> SqlAnswer:
    if call is not None:
        for one in answer.phases:
            call.add_stage(Stage(one.name, one.start_s - call.arrival_s, one.end_s - call.arrival_s))
    note.detail |= {"rows": answer.rows, "bytes": len(answer.body), "datasets": ", ".join(answer.datasets)}
    return answer


def _with_usage(answer: SqlAnswer, answering: Answering) -> SqlAnswer:
    found = answering.usage
    usage = AiUsage(
        rows=found.rows,
        computed=found.computed,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
        failed=found.failed.total(),
        unplanned=found.dropped.total(),
    )
    costs = tuple(answering.costs) if answering.explains else ()
    return replace(answer, usage=usage, warnings=tuple(answering.warnings), costs=costs)


def encode_paths(paths: list[str]) -> bytes:
    """The setup of a worker."""
    return msgspec.msgpack.encode(paths)


def _limit(error: LimitExceeded, job: Job) -> str:
    if "MB" in error.what:
        return (
            f"the statement needs more than {job.memory >> 20:,} MiB: read fewer rows or columns, or raise "
            "sql.memory"
        )
    return f"the statement takes more than {job.seconds:g} s: read fewer rows, or raise sql.seconds"


def _error(reply: Reply, secrets: set[str]) -> HeadraceError:
    assert not isinstance(reply, SqlAnswer)
    message = without(reply.message, secrets)
    if reply.problem == "source":
        return SourceDown(f"dataset {reply.dataset!r} cannot be opened: {message}")
    kinds = {"refused": StatementRefused, "limit": SqlLimit}
    return kinds.get(reply.problem, SqlFailed)(message, param="sql")
