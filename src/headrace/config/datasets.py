"""Settings of data: `[datasets.NAME]`, and the limits and roles of `[sql]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from msgspec import Struct

from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import OBJECT, SECONDS, SIZE, SWITCH, integer, one_of, text, texts
from headrace.errors import UsageError

ANYBODY = "*"
"""As a role in `where` and `columns`: every role that is not named."""
Refresh = Literal["full", "append"]
FileFormat = Literal["parquet", "csv", "json", "arrow", "excel"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Acceleration(Struct, frozen=True, kw_only=True):
    """A local copy of a dataset."""

    refresh: Annotated[
        Refresh,
        Setting(help="copy all rows again, or only newer ones", values=one_of(Refresh)),
    ] = "full"
    time_column: Annotated[
        str | None,
        Setting(help="column by which append finds newer rows", values=text("column")),
    ] = None
    every_s: Annotated[
        float, Setting(help="seconds after which the copy is renewed; 0: on request only", values=SECONDS)
    ] = 0.0


_COLUMN, _COLUMNS, _MODEL = text("column"), texts("column[,column]"), text("model")


class DatasetIndex(Struct, frozen=True, kw_only=True):
    """An index of a dataset's texts, which `headrace ingest --dataset NAME` or a server brings up to date."""

    text: Annotated[tuple[str, ...], Setting(help="columns that are searched", values=_COLUMNS)] = ()
    key: Annotated[
        str, Setting(help="column that identifies rows; its values are unique", values=_COLUMN)
    ] = "id"
    title: Annotated[str | None, Setting(help="column of titles", values=_COLUMN, shown_default="none")] = (
        None
    )
    attributes: Annotated[
        tuple[str, ...],
        Setting(help="columns for conditions on hits", values=_COLUMNS, shown_default="none"),
    ] = ()
    model: Annotated[str | None, Setting(help="model that embeds", values=_MODEL, shown_default="embed")] = (
        None
    )
    chunk: Annotated[
        int | None,
        Setting(help="tokens of a chunk, at most", values=integer(16), shown_default="256"),
    ] = None
    every_s: Annotated[
        float,
        Setting(help="seconds after which a server brings it up to date; 0: on request only", values=SECONDS),
    ] = 0.0


class DatasetSettings(Struct, frozen=True, kw_only=True):
    """An entry of [datasets]; `source` is written `from`."""

    source: Annotated[str, Setting(help="where it is: KIND:LOCATION", values=text("kind:location"))] = ""
    secret: Annotated[
        str | None,
        Setting(
            help="name of its password or token: env:VARIABLE or file:PATH",
            values=text("env:VARIABLE"),
            shown_default="none",
        ),
    ] = None
    format: Annotated[
        FileFormat | None,
        Setting(help="format of files", values=one_of(FileFormat), shown_default="by the name's end"),
    ] = None
    host: Annotated[str, Setting(help="database server", values=text("host"))] = "127.0.0.1"
    port: Annotated[
        int | None, Setting(help="its port", values=integer(1, 65535), shown_default="the kind's")
    ] = None
    user: Annotated[
        str | None,
        Setting(help="user, or access key id of s3", values=text("name"), shown_default="none"),
    ] = None
    database: Annotated[
        str | None, Setting(help="name of the database", values=text("name"), shown_default="none")
    ] = None
    endpoint: Annotated[
        str | None, Setting(help="address of s3's server", values=text("url"), shown_default="Amazon's")
    ] = None
    region: Annotated[str, Setting(help="region of s3", values=text("region"))] = "us-east-1"
    allow_private: Annotated[
        bool,
        Setting(
            help="whether the public name of a web server may lead to a private address",
            values=SWITCH,
            shown_default="false",
        ),
    ] = False
    where: Annotated[
        Mapping[str, object],
        Setting(help="condition on rows by role; * is every other role", values=OBJECT, shown_default="none"),
    ] = {}
    columns: Annotated[
        Mapping[str, object],
        Setting(help="columns by role; * is every other role", values=OBJECT, shown_default="all"),
    ] = {}
    accelerate: Annotated[
        Mapping[str, object] | None,
        Setting(help="a local copy, see below", values=OBJECT, shown_default="none"),
    ] = None
    index: Annotated[
        Mapping[str, object] | None,
        Setting(help="an index of its texts, see below", values=OBJECT, shown_default="none"),
    ] = None


class SqlLimits(Struct, frozen=True, kw_only=True):
    """What a statement may take, and its key's role."""

    seconds: Annotated[float, Setting(help="time limit of a statement", values=SECONDS)] = 30.0
    memory: Annotated[int, Setting(help="limit of a statement", values=SIZE, shown_default="1GiB")] = 2**30
    rows: Annotated[int, Setting(help="most rows of a reply", values=integer(1))] = 100_000
    bytes: Annotated[int, Setting(help="most bytes of a reply", values=SIZE, shown_default="64MiB")] = 2**26
    parallel: Annotated[int, Setting(help="statements of a key at the same time", values=integer(1, 64))] = 2
    ai_rows: Annotated[int, Setting(help="rows that models compute for a statement", values=integer(1))] = (
        100_000
    )
    ai_tokens: Annotated[
        int, Setting(help="most prompt and generated tokens for a statement", values=integer(1))
    ] = 20_000_000
    ai_seconds: Annotated[
        float, Setting(help="time of models for a statement, besides `seconds`", values=SECONDS)
    ] = 3600.0
    ai_memo: Annotated[
        int,
        Setting(help="size of the stored values of models, of all keys", values=SIZE, shown_default="256MiB"),
    ] = 2**28
    role: Annotated[
        str | None,
        Setting(help="role of the key in `where` and `columns`", values=text("role"), shown_default="none"),
    ] = None


DATASET_SETTINGS: Mapping[str, Setting] = table_of(DatasetSettings)
ACCELERATION_SETTINGS: Mapping[str, Setting] = table_of(Acceleration)
INDEX_SETTINGS: Mapping[str, Setting] = table_of(DatasetIndex)
SQL_SETTINGS: Mapping[str, Setting] = table_of(SqlLimits)


class SqlSettings(Struct, frozen=True):
    """The limits of every key, and those of keys that have their own."""

    everyone: SqlLimits
    keys: Mapping[str, SqlLimits]

    def of(self, key: str | None) -> SqlLimits:
        """The limits of a key by its name."""
        return self.everyone if key is None else self.keys.get(key, self.everyone)


def read_datasets(table: Mapping[str, object] | None) -> dict[str, DatasetSettings]:
    """The entries of [datasets]; UsageError names what is unknown or no value."""
    found: dict[str, DatasetSettings] = {}
    for name, entry in (table or {}).items():
        where = f"datasets.{name}"
        if not _NAME.fullmatch(name) or name.casefold() in {other.casefold() for other in found}:
            raise UsageError(
                f"{where}: a name is up to 63 letters, digits and _, and stands for one dataset, whatever "
                "its capitals"
            )
        given = {"from": entry} if isinstance(entry, str) else entry
        found[name] = _checked(DatasetSettings(**_values(given, DATASET_SETTINGS, where)), where)
    return found


def acceleration_of(settings: DatasetSettings, where: str) -> Acceleration | None:
    """The local copy of a dataset; None without."""
    if settings.accelerate is None:
        return None
    found = Acceleration(**_values(settings.accelerate, ACCELERATION_SETTINGS, f"{where}.accelerate"))
    if (found.refresh == "append") != (found.time_column is not None):
        raise UsageError(f'{where}.accelerate: refresh = "append" and time_column belong together')
    return found


def index_of(settings: DatasetSettings, where: str) -> DatasetIndex | None:
    """The index of a dataset; None without. One with rules has none: every key would search all rows."""
    if settings.index is None:
        return None
    found = DatasetIndex(**_values(settings.index, INDEX_SETTINGS, f"{where}.index"))
    if not found.text:
        raise UsageError(f'{where}.index needs text, such as text = ["body"]')
    if settings.where or settings.columns:
        raise UsageError(
            f"{where}.index: a dataset with rules has no index, which would show all rows to all keys"
        )
    return found


def read_sql(table: Mapping[str, object] | None) -> SqlSettings:
    """The table [sql], with a table for each key that has limits of its own in [sql.keys.NAME]."""
    given = dict(table or {})
    keys = given.pop("keys", {})
    if not isinstance(keys, Mapping):
        raise UsageError("sql.keys is a table with a table for each key: [sql.keys.NAME]")
    everyone = _values(given, SQL_SETTINGS, "sql")
    own = {
        name: SqlLimits(**(everyone | _values(entry, SQL_SETTINGS, f"sql.keys.{name}")))
        for name, entry in cast("Mapping[str, object]", keys).items()
    }
    return SqlSettings(SqlLimits(**everyone), own)


def _checked(settings: DatasetSettings, where: str) -> DatasetSettings:
    if ":" not in settings.source:
        raise UsageError(
            f'{where}.from is {settings.source!r}: write KIND:LOCATION, such as "file:orders.csv"'
        )
    for role, condition in settings.where.items():
        if not isinstance(condition, str) or not condition.strip():
            raise UsageError(f"{where}.where.{role} is no condition, such as \"region = 'eu'\"")
    for role, columns in settings.columns.items():
        names = cast("list[object]", columns)
        if not isinstance(columns, list) or not names or not all(isinstance(name, str) for name in names):
            raise UsageError(f"{where}.columns.{role} is no list of names of columns")
    acceleration_of(settings, where)
    index_of(settings, where)
    return settings


def _values(entry: object, rows: Mapping[str, Setting], where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is no table")
    shown = {"from" if name == "source" else name: name for name in rows}
    values: dict[str, Any] = {}
    for key, value in cast("Mapping[str, object]", entry).items():
        name = shown[known_name(key, list(shown), f"{where}: unknown {key!r}")]
        values[name] = rows[name].parse(value, f"{where}.{key}")
    return values
