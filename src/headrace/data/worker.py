"""The process of statements: `python -m headrace.data.worker`, a fork server with DuckDB's extensions loaded.

Each statement runs in a fork, which opens the datasets that the statement names and no others, and which the
kernel ends at its limits of time (on the clock) and memory, whatever the engine does.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import msgspec

from headrace.data.ai_calls import FoundCall, find_calls, has_calls, nodes_of, put_in_place, sites_of
from headrace.data.ai_values import Answers, register
from headrace.data.dialect import DuckDialect
from headrace.data.function_names import FUNCTIONS
from headrace.data.guard import SEARCHES, Checked, Node, StatementRefused, check, walk_tree
from headrace.data.job import Column, Copy, Phase, Query, Reply, SqlAnswer, SqlFailure, View, decode_job
from headrace.data.look_ahead import look_ahead
from headrace.data.origin_proxy import OriginProxy
from headrace.data.output import Output, TooMuch
from headrace.data.plan import NO_PLAN, Plan, plan
from headrace.data.search_calls import PREFIX as SEARCH_TABLE
from headrace.data.search_calls import has_searches, make_tables, put_searches
from headrace.data.source import PROXY, literal, quoted
from headrace.data.task_history import NAMES, open_history
from headrace.isolation.fork_server import Ask, serve

Connection = Any
"""DuckDB's, which is there only with its extra."""

_ZONED = "TIME WITH TIME ZONE"
THREADS = 2
BATCH_ROWS = 8192
_ARROW = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": str(THREADS),
    "ARROW_IO_THREADS": str(THREADS),
}
"""Arrow's own pool takes up to a gigabyte at once, and each of its threads, one for a core, a stack of 8 MB:
all of it would count as memory of the fork that uses it first."""
_UNWRITABLE = (ValueError, TypeError, OSError, NotImplementedError)
"""Of Arrow, for values that it or the form of the reply does not know."""


PROXIES: list[OriginProxy] = []
"""Of this fork."""


class SourceFailed(Exception):
    """A dataset cannot be opened."""

    def __init__(self, dataset: str, message: str) -> None:
        super().__init__(message)
        self.dataset = dataset


class Worker:
    """Holds the engine as every fork inherits it: one thread, nothing attached, all extensions loaded."""

    def __init__(self, setup: bytes) -> None:
        self._duckdb = importlib.import_module("duckdb")
        os.environ.update(_ARROW)
        importlib.import_module("pyarrow")
        self._connection: Connection = self._duckdb.connect(
            config={
                "threads": "1",
                "allow_unsigned_extensions": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_persistent_secrets": "false",
                "python_enable_replacements": "false",
                "temp_directory": "",
            }
        )
        for path in msgspec.msgpack.decode(setup, type=list[str]):
            self._connection.execute(f"LOAD {literal(path)}")

    def __call__(self, payload: bytes, ask: Ask) -> bytes:
        job = decode_job(payload)
        # Its default action ends the process, also where the engine heeds no interrupt.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        return msgspec.msgpack.encode(self._reply(job, ask))

    def _reply(self, job: Query | Copy, ask: Ask) -> Reply:
        try:
            self._limit(job.memory)
            return _Run(self._connection, job, ask).answer() if isinstance(job, Query) else self._copy(job)
        except StatementRefused as refused:
            return SqlFailure("refused", refused.message)
        except SourceFailed as failed:
            return SqlFailure("source", str(failed), failed.dataset)
        except TooMuch as much:
            return SqlFailure("limit", str(much))
        except MemoryError:
            raise
        except self._duckdb.OutOfMemoryException:
            raise MemoryError from None
        except (self._duckdb.Error, *_UNWRITABLE) as error:
            refused = next((one.refused[0] for one in PROXIES if one.refused), None)
            return SqlFailure("failed", refused or _plain(error))

    def _limit(self, memory: int) -> None:
        self._connection.execute(f"SET memory_limit = '{memory * 8 // 10} B'")
        self._connection.execute(f"SET threads = {THREADS}")

    def _copy(self, job: Copy) -> SqlAnswer:
        connection = self._connection
        open_view(connection, job.view)
        connection.execute(f"ATTACH {literal(job.path)} AS __copy")
        view, table = quoted(job.view.name), "__copy.main.data"
        if job.later_than is None:
            connection.execute(f"CREATE TABLE {table} AS SELECT * FROM {view}")
        else:
            column = quoted(job.later_than)
            connection.execute(
                f"INSERT INTO {table} BY NAME SELECT * FROM {view} WHERE {column} > "
                f"coalesce((SELECT max({column}) FROM {table}), (SELECT min({column}) FROM {view})) "
                f"OR (SELECT count(*) = 0 FROM {table})"
            )
        rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        connection.execute("DETACH __copy")
        return SqlAnswer((), rows, b"")


class _Run:
    """One statement in a fork."""

    def __init__(self, connection: Connection, job: Query, ask: Ask | None = None) -> None:
        self._connection, self._job, self._ask = connection, job, ask
        self._dialect = DuckDialect(self._serialize, self._deserialize)
        self._error: type[Exception] = importlib.import_module("duckdb").Error
        self._phases: list[Phase] = []
        self._found: dict[str, str] = {}

    def answer(self) -> SqlAnswer:
        job, connection = self._job, self._connection
        views = {view.name.lower(): view for view in job.views}
        with self._phase("check statement"):
            checked = self._check(self._known(views))
        with self._phase("open datasets"):
            opened = [views[name] for name in checked.datasets if name in views]
            for view in opened:
                open_view(connection, view)
            if len(opened) < len(checked.datasets):
                open_history(connection, job.history or ())
            self._lock(opened)
        names = tuple(self._known(views)[name] for name in checked.datasets)
        text, parameters = checked.text, list(job.parameters)
        tree, answers = self._dialect.tree(text), None
        if job.describe:
            parameters = [None] * _count_parameters(tree)
        if has_searches(tree):
            with self._phase("search"):
                self._search(tree, parameters)
            text, parameters = self._dialect.text(tree), []
        if has_calls(tree):
            with self._phase("plan calls"):
                answers = self._with_models(tree, self._known(views), parameters)
            text, parameters = self._dialect.text(tree), []
        with self._phase("execute"):
            columns, output = self._executed(self._to_run(text), parameters)
        if answers is not None and answers.has_guessed and output.rows < self._most_rows(tree):
            answers.assume_nothing()
            columns, output = self._executed(text, parameters)
        return SqlAnswer(columns, output.rows, output.close(), names, phases=tuple(self._phases))

    def _to_run(self, text: str) -> str:
        if self._job.describe:
            return f"SELECT * FROM (\n{text}\n) AS q LIMIT 0"
        return f"EXPLAIN {text}" if self._job.explain else text

    def _known(self, views: dict[str, View]) -> dict[str, str]:
        """The names that a statement may read."""
        found = {known: view.name for known, view in views.items()}
        return found if self._job.history is None else {**found, **NAMES}

    @contextmanager
    def _phase(self, name: str) -> Generator[None]:
        start_s = time.monotonic()
        yield
        self._phases.append(Phase(name, start_s, time.monotonic()))

    def _executed(self, text: str, parameters: list[Any]) -> tuple[tuple[Column, ...], Output]:
        columns = self._ran(text, parameters)
        if any(column.type == _ZONED for column in columns):
            columns = self._ran(_zones_as_text(text, columns), parameters)
        reader = self._connection.to_arrow_reader(BATCH_ROWS)
        output = Output(self._job.format, reader.schema, self._job.rows, self._job.bytes)
        for batch in reader:
            output.add(batch)
        return columns, output

    def _ran(self, text: str, parameters: list[Any]) -> tuple[Column, ...]:
        """Run a statement; its columns."""
        self._connection.execute(text, parameters or None)
        return tuple(Column(str(one[0]), str(one[1])) for one in self._connection.description)

    def _most_rows(self, tree: Node) -> int:
        """The LIMIT of a statement."""
        modifiers: list[Node] = tree["statements"][0]["node"]["modifiers"]
        return next(
            int(one["limit"]["value"]["value"]) for one in modifiers if one["type"] == "LIMIT_MODIFIER"
        )

    def _search(self, tree: Node, parameters: list[Any]) -> None:
        """Put tables of what was found in the place of searches."""
        if self._ask is None or not self._job.searches:
            raise StatementRefused("there are no indexes to search here")
        searches = put_searches(tree, self._dialect, parameters, self._evaluated)
        is_run = not (self._job.explain or self._job.describe)
        make_tables(self._connection, searches, Answers(self._ask).asked if is_run else None)
        self._found = {f"{SEARCH_TABLE}{number}": "" for number in range(len(searches))}

    def _with_models(self, tree: Node, datasets: dict[str, str], parameters: list[Any]) -> Answers:
        """Put functions of this connection in the place of those that models answer, and look ahead."""
        if self._ask is None or not self._job.models:
            raise StatementRefused("functions that models answer may not be used: no model is served here")
        calls = find_calls(tree, self._dialect, parameters)
        answers = Answers(self._ask)
        sites = sites_of(calls, self._evaluated, self._aggregates)
        put_in_place(calls, answers.declare(sites), self._dialect)
        names = {call.name for call in calls}
        walk_tree(self._serialize(self._dialect.text(tree)), datasets | self._found, set(), names)
        register(self._connection, calls, None if self._job.explain or self._job.describe else answers)
        if self._job.planned:
            look_ahead(self._connection, self._planned(tree, calls), calls, answers, (self._error,))
        return answers

    def _planned(self, tree: Node, calls: list[FoundCall]) -> Plan:
        try:
            count = None if self._job.explain else self._counted
            return plan(tree, calls, self._dialect, self._aggregates, count)
        except (LookupError, TypeError, ValueError, self._error):  # DuckDB writes this part otherwise
            return Plan((), dict.fromkeys(range(len(calls)), NO_PLAN))

    def _counted(self, sql: str) -> int:
        """The rows of a query."""
        return int(self._connection.execute(f"SELECT count(*) FROM ({sql}) AS q").fetchone()[0])

    @cached_property
    def _aggregates(self) -> set[str]:
        """The names of aggregates."""
        sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
        return {str(name) for (name,) in self._connection.execute(sql).fetchall()}

    def _evaluated(self, expressions: list[Node]) -> list[Any]:
        """The values of constants."""
        return list(self._connection.execute(self._dialect.select(expressions)).fetchone())

    def _check(self, datasets: dict[str, str]) -> Checked:
        more = {*FUNCTIONS, *(SEARCHES if self._job.searches else ())}
        return check(self._job.sql, datasets, self._serialize, self._deserialize, more)

    def _serialize(self, sql: str) -> str:
        return self._called("json_serialize_sql", sql)

    def _deserialize(self, tree: str) -> str:
        return self._called("json_deserialize_sql", tree)

    def _called(self, function: str, argument: str) -> str:
        return str(self._connection.execute(f"SELECT {function}(?)", [argument]).fetchone()[0])

    def _lock(self, views: list[View]) -> None:
        """DuckDB's own switches, behind the guard: no file but the datasets', no setting."""
        paths = [path for view in views for path in view.source.paths]
        folders = [folder for view in views for folder in view.source.folders]
        for setting, values in (("allowed_paths", paths), ("allowed_directories", folders)):
            self._connection.execute(f"SET {setting} = [{', '.join(map(literal, values))}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")


def _zones_as_text(text: str, columns: Sequence[Column]) -> str:
    """The statement with times of day as texts where they have an offset, which Arrow's type has not."""
    shown = ", ".join(
        (f"CAST(#{number} AS VARCHAR)" if column.type == _ZONED else f"#{number}")
        + f" AS {quoted(column.name)}"
        for number, column in enumerate(columns, 1)
    )
    return f"SELECT {shown} FROM (\n{text}\n) AS q"


def _count_parameters(tree: Node) -> int:
    numbers = [str(node.get("identifier", "")) for node in nodes_of(tree) if node.get("class") == "PARAMETER"]
    return max((int(one) for one in numbers if one.isdecimal() and len(one) < 5), default=0)


def open_view(connection: Connection, view: View) -> None:
    """Make a dataset readable under its name; SourceFailed says why not."""
    source = view.source
    shown = "*" if view.columns is None else ", ".join(map(quoted, view.columns))
    # OFFSET 0 is a barrier: no condition of a statement is evaluated on rows that the rule removes, whose
    # values an error would tell.
    rule = "" if view.where is None else f" WHERE ({view.where}\n) OFFSET 0"
    proxy = None
    try:
        if source.origin is not None:
            proxy = OriginProxy(source.origin, allow_private=source.allow_private)
            PROXIES.append(proxy)
        for statement in source.statements:
            connection.execute(statement if proxy is None else statement.replace(PROXY, proxy.address))
        if source.arrow is not None:
            dataset = importlib.import_module("pyarrow.dataset").dataset(source.arrow, format="ipc")
            connection.register(source.relation.strip('"'), dataset)
        connection.execute(f"CREATE VIEW {quoted(view.name)} AS SELECT {shown} FROM {source.relation}{rule}")
        connection.execute(f"SELECT * FROM {quoted(view.name)} LIMIT 0")
    except MemoryError:
        raise
    except Exception as error:  # duckdb's, pyarrow's or the file system's
        message = _plain(error).partition("\n\nLINE ")[0]  # a statement of ours, with addresses in it
        if view.where is not None or view.columns is not None:
            message = message.partition("\n")[0].partition("Candidate")[0]
        if proxy is not None and proxy.refused:
            message = proxy.refused[0]
        raise SourceFailed(view.name, message) from None


def _plain(error: Exception) -> str:
    text = str(error).partition("\n\nStack Trace:")[0]
    with suppress(ValueError):
        text = text[: text.index("\n\nLINE ")] if "__source_" in text else text
    return text.strip()[:2000] or type(error).__name__


if __name__ == "__main__":
    serve(Worker)
