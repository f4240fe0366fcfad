"""Files: Parquet, CSV, JSON, Arrow and Excel; several of them by a pattern."""

from __future__ import annotations

from pathlib import Path

from headrace.data.source import Connector, Opened, Source, literal, local_path
from headrace.errors import UsageError

FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".xlsx": "excel",
}
READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json", "excel": "read_xlsx"}
_PACKED = (".gz", ".zst")


def format_of(opened: Opened) -> str:
    """The format of a file: as set, or by the end of its name."""
    if opened.settings.format is not None:
        return opened.settings.format
    name = opened.location.partition("?")[0].lower()
    for end in _PACKED:
        name = name.removesuffix(end)
    found = FORMATS.get(Path(name).suffix)
    if found is None:
        raise UsageError(
            f"{opened.where}: the name's end does not tell the format: give format = parquet, csv, json, "
            "arrow or excel"
        )
    return found


def reader(opened: Opened, path: str, found: str) -> str:
    """The call that reads `path`."""
    return f"{READERS[found]}({literal(path)})"


def beginning(path: str) -> str:
    """The folder of a path or pattern before its first wildcard."""
    for index, character in enumerate(path):
        if character in "*?[":
            path = path[:index]
            break
    return path.rpartition("/")[0] + "/"


def _connect(opened: Opened) -> Source:
    path = local_path(opened.location.removeprefix("//"))
    found = format_of(opened)
    if found == "arrow":
        return Source(relation=f'"{opened.attached}"', arrow=path)
    patterned = any(character in path for character in "*?[")
    return Source(
        relation=reader(opened, path, found),
        extensions=("excel",) if found == "excel" else (),
        paths=() if patterned else (path,),
        folders=(beginning(path),) if patterned else (),
    )


CONNECTOR = Connector(_connect, ("excel",))
