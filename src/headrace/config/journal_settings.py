"""Settings of the journal: `--journal FOLDER` or the table `[journal]`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Struct

from headrace.config.cache_settings import AGE
from headrace.config.names import known_name
from headrace.config.setting import Setting, table_of
from headrace.config.values import SIZE, Values, one_of, path
from headrace.errors import UsageError

FsyncPolicy = Literal["off", "crash", "power"]
FullPolicy = Literal["refuse", "pause"]


def _journal(value: object) -> Mapping[str, object]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            value = None
    if isinstance(value, str | Path) and str(value):
        return {"folder": str(value)}
    if not isinstance(value, dict):
        raise ValueError("a folder, or a table with folder")
    return cast("Mapping[str, object]", value)


JOURNAL = Values("folder", _journal, (dict,))
"""A folder, or the whole table."""


class JournalSettings(Struct, frozen=True, kw_only=True):
    """The table `[journal]`. Without it nothing is kept."""

    folder: Annotated[Path, Setting(help="where it is", values=path("folder"), shown_default="required")]
    fsync: Annotated[
        FsyncPolicy,
        Setting(
            help="what a token survives once clients see it. crash: the end of the process; power: also a "
            "power cut (waits for the disk); off: neither, records are written five times a second",
            values=one_of(FsyncPolicy),
        ),
    ] = "crash"
    bytes: Annotated[
        int, Setting(help="size; beyond it the oldest are deleted", values=SIZE, shown_default="1GiB")
    ] = 2**30
    max_age: Annotated[
        float, Setting(help="time after which a request is deleted", values=AGE, shown_default="7d")
    ] = 7.0 * 86_400
    on_full: Annotated[
        FullPolicy,
        Setting(
            help="what happens if the disk is full. refuse: new requests get 507; pause: they are answered "
            "with a warning, but not recorded",
            values=one_of(FullPolicy),
        ),
    ] = "refuse"
    key_file: Annotated[
        Path | None,
        Setting(
            help="file with the secret that encrypts all records",
            values=path("file"),
            shown_default="none",
        ),
    ] = None


JOURNAL_SETTINGS: Mapping[str, Setting] = table_of(JournalSettings)


def read_journal(table: Mapping[str, object] | None) -> JournalSettings | None:
    """The table `[journal]`, None where there is none; UsageError names what is unknown or no value."""
    if table is None:
        return None
    values: dict[str, Any] = {}
    for name, value in table.items():
        row = JOURNAL_SETTINGS[known_name(name, list(JOURNAL_SETTINGS), f"journal: unknown {name!r}")]
        values[name] = row.parse(value, f"journal.{name}")
    if "folder" not in values:
        raise UsageError('journal.folder is missing: name the folder, such as folder = "journal"')
    found = JournalSettings(**values)
    if found.bytes < 2**20:
        raise UsageError(f"journal.bytes is {found.bytes:,}, at least 1MiB is needed")
    return found
