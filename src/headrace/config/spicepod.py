"""A spicepod.yaml of Spice as a headrace.toml. What is not understood is listed, never left out silently.

Form: https://spiceai.org/docs/reference/spicepod
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from msgspec import Struct

from headrace.config.toml_text import toml_key, toml_tables
from headrace.config.yaml_text import read_yaml
from headrace.errors import UsageError

MAX_BYTES = 1 << 20
MAX_PARTS = 10_000
VERSIONS = ("v1beta1", "v1", "v2")
Table = dict[str, object]
_SECRET = re.compile(r"\$\{\s*(?:secrets|env)\s*:\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_SERVERS: Mapping[str, Mapping[str, str]] = {
    "postgres": {
        "pg_host": "host",
        "pg_port": "port",
        "pg_db": "database",
        "pg_user": "user",
        "pg_pass": "secret",
        "pg_connection_string": "secret",
    },
    "mysql": {
        "mysql_host": "host",
        "mysql_tcp_port": "port",
        "mysql_db": "database",
        "mysql_user": "user",
        "mysql_pass": "secret",
        "mysql_connection_string": "secret",
    },
}
_S3 = {"s3_region": "region", "s3_endpoint": "endpoint", "s3_key": "user", "s3_secret": "secret"}
_FORMATS = ("parquet", "csv", "json")
_HUB = re.compile(r"(?:huggingface\.co/)?([\w.-]+/[\w.-]+)(?::latest)?")


class ImportedPod(Struct, frozen=True):
    """The headrace.toml, and what has no place in it: paths of fields, with why."""

    text: str
    problems: tuple[str, ...]


def read_spicepod(data: bytes, without: Collection[str] = ()) -> ImportedPod:
    """Read a spicepod; fields whose paths are among `without` are left out. UsageError where it is none."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"the spicepod has {len(data):,} bytes, at most {MAX_BYTES:,} are read")
    pod = _Pod(_Part(_loaded(data), "", _Problems(without)))
    return pod.imported()


def _loaded(data: bytes) -> Mapping[str, object]:
    """The document; UsageError for what is none."""
    return read_yaml(data, "the spicepod", MAX_PARTS)


class _Problems:
    """What is not understood."""

    def __init__(self, without: Collection[str]) -> None:
        self._without = frozenset(without)
        self.found: list[str] = []

    def add(self, path: str, why: str) -> None:
        if path not in self._without and re.sub(r"\[\d+\]", "[]", path) not in self._without:
            self.found.append(f"{path}: {why}")


class _Part:
    """A mapping whose fields are taken one by one; `end` lists those that nobody took."""

    def __init__(self, fields: Mapping[str, object], path: str, problems: _Problems) -> None:
        self._fields, self.path, self.problems = dict(fields), path, problems

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def problem(self, name: str, why: str) -> None:
        self.problems.add(self.at(name), why)

    def take(self, name: str, kind: type | tuple[type, ...] = str) -> Any:
        """A field's value, None where it is not there or of another kind."""
        value = self._fields.pop(name, None)
        if value is None or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)):
            return value
        self.problem(name, f"{value!r:.60} is not what is expected")
        return None

    def part(self, name: str) -> _Part:
        """A mapping within."""
        return _Part(self.take(name, dict) or {}, self.at(name), self.problems)

    def parts(self, name: str) -> list[_Part]:
        """The mappings of a list."""
        found: list[_Part] = []
        listed: list[object] = self.take(name, list) or []
        for index, one in enumerate(listed):
            path = f"{self.at(name)}[{index}]"
            if isinstance(one, dict):
                found.append(_Part(cast("Mapping[str, object]", one), path, self.problems))
            else:
                self.problems.add(path, f"{one!r:.60} is no mapping")
        return found

    def names(self) -> list[str]:
        return list(self._fields)

    def end(self, why: str = "there is no setting for it") -> None:
        for name, value in self._fields.items():
            for path in _leaves(value, self.at(str(name))):
                self.problems.add(path, why)


class _Pod:
    def __init__(self, top: _Part) -> None:
        self._top = top
        self._tables: dict[str, Table] = {}

    def imported(self) -> ImportedPod:
        top = self._top
        name = top.take("name")
        if (kind := top.take("kind")) != "Spicepod":
            top.problem("kind", f"it is {kind!r}, not Spicepod")
        if (version := top.take("version")) not in VERSIONS:
            top.problem("version", f"it is {version!r}, known are {', '.join(VERSIONS)}")
        for one in top.parts("secrets"):
            self._secret(one)
        for one in top.parts("datasets"):
            self._named(one, "datasets", self._dataset)
        for kind in ("models", "embeddings"):
            for one in top.parts(kind):
                self._named(one, "models", self._model)
        top.end()
        title = f"# Imported from the spicepod {name!r}.\n\n" if name else ""
        return ImportedPod(title + toml_tables(self._tables), tuple(top.problems.found))

    def _secret(self, part: _Part) -> None:
        """Only that secrets are variables of the environment."""
        if (source := part.take("from")) != "env":
            part.problem("from", f"secrets are variables of the environment, not {source!r}")
        part.take("name")
        part.end()

    def _named(self, part: _Part, kind: str, read: Callable[[_Part], Table]) -> None:
        name = part.take("name")
        table = read(part)
        part.end()
        if not name:
            part.problem("name", "it has no name")
        elif f"{kind}.{toml_key(name)}" in self._tables:
            part.problem("name", f"{name!r} is there twice")
        else:
            self._tables[f"{kind}.{toml_key(name)}"] = table

    def _dataset(self, part: _Part) -> Table:
        params = part.part("params")
        source = part.take("from") or ""
        kind, mark, location = source.partition(":")
        table: Table = {"from": source}
        if mark and kind in _SERVERS:
            _renamed(params, _SERVERS[kind], table)
        elif kind == "s3" and mark:
            _renamed(params, _S3, table)
            if params.take("s3_auth") not in (None, "key", "public"):
                params.problem("s3_auth", "key and public are known")
        elif kind == "file" and mark:
            table["from"] = f"file:{location.removeprefix('//')}"
        elif kind == "delta_lake" and mark:
            table["from"] = f"delta:{location.removeprefix('file://')}"
        elif kind == "duckdb" and mark:
            table["from"] = f"duckdb:{params.take('duckdb_open') or ''}#{location}"
            if "duckdb:#" in str(table["from"]):
                params.problem("duckdb_open", "the file of the database is not given")
        elif kind not in ("http", "https") or not mark:
            part.problem("from", f"there is no source of kind {kind!r:.60}")
        self._format(params, table)
        params.end()
        self._acceleration(part, table)
        return table

    def _format(self, params: _Part, table: Table) -> None:
        found = params.take("file_format")
        if found in _FORMATS:
            table["format"] = found
        elif found is not None:
            params.problem("file_format", f"{found!r} is not read: known are {', '.join(_FORMATS)}")

    def _acceleration(self, part: _Part, table: Table) -> None:
        given = part.part("acceleration")
        column = part.take("time_column")
        if not given.names():
            if column is not None:
                part.problem("time_column", "it has a use only with acceleration")
            return
        is_on = given.take("enabled", bool)
        mode, engine = given.take("mode"), given.take("engine")
        refresh = given.take("refresh_mode") or "full"
        if engine not in (None, "arrow", "duckdb"):
            given.problem("engine", f"copies are files of DuckDB, not of {engine!r}")
        if mode not in (None, "memory", "file"):
            given.problem("mode", f"copies are files, not {mode!r}")
        if refresh not in ("full", "append"):
            given.problem("refresh_mode", f"{refresh!r} is not known: full and append are")
        copy: Table = {"refresh": refresh}
        if refresh == "append":
            copy["time_column"] = column
            if column is None:
                part.problem("time_column", "append needs it")
        elif column is not None:
            part.problem("time_column", "it has a use only with refresh_mode: append")
        every = given.take("refresh_check_interval")
        if every is not None:
            copy["every_s"] = seconds = _seconds(every)
            if not seconds:
                given.problem("refresh_check_interval", f"{every!r} is no duration such as 10s or 1h")
        given.end()
        if is_on is not False:
            table["accelerate"] = copy

    def _model(self, part: _Part) -> Table:
        source = part.take("from") or ""
        kind, _, location = source.partition(":")
        params = part.part("params")
        table: Table = {}
        if kind in ("huggingface", "hf") and (found := _HUB.fullmatch(location)):
            table["path"] = found[1]
        elif kind == "file":
            table["path"] = location.removeprefix("//")
        elif kind in ("openai", "anthropic", "xai") and location:
            table |= {"provider": kind, "model": location}
            self._provider(kind, params)
        else:
            part.problem("from", f"there is no model of kind {source!r:.60}")
        params.end()
        return table

    def _provider(self, kind: str, params: _Part) -> None:
        provider = self._tables.setdefault(f"providers.{kind}", {})
        for name in (f"{kind}_api_key", "endpoint"):
            value = params.take(name)
            if value is None:
                continue
            key = "base_url" if name == "endpoint" else "api_key_env"
            if key == "api_key_env":
                value = (_secret_of(value) or "").removeprefix("env:")
                if not value:
                    params.problem(name, "a secret is named, never written: ${secrets:NAME}")
                    continue
            if provider.setdefault(key, value) != value:
                params.problem(name, f"models of {kind} have different ones")


def _renamed(params: _Part, names: Mapping[str, str], table: Table) -> None:
    """Take parameters under our names."""
    for theirs, ours in names.items():
        value = params.take(theirs, (str, int))
        if value is None:
            continue
        secret = _secret_of(str(value))
        if ours == "secret":
            if secret is None:
                params.problem(theirs, "a secret is named, never written: ${secrets:NAME}")
                continue
            if "secret" in table:
                params.problem(theirs, "there are two secrets")
            table[ours] = secret
        elif secret is not None or "${" in str(value):
            params.problem(theirs, "only passwords, keys and tokens can be secrets here: write its value")
        elif ours == "port":
            table[ours] = int(value) if str(value).isdecimal() else value
        else:
            table[ours] = str(value)


def _secret_of(text: str) -> str | None:
    found = _SECRET.fullmatch(text.strip())
    return None if found is None else f"env:{found[1]}"


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.replace(" ", ""))
    if found is None:
        return 0.0
    hours, minutes, seconds, thousandths = (int(one or 0) for one in found.groups())
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1000


def _leaves(value: object, path: str) -> list[str]:
    """The paths of all fields within a value."""
    if isinstance(value, dict) and value:
        entries = cast("Mapping[object, object]", value).items()
        return [leaf for key, one in entries for leaf in _leaves(one, f"{path}.{key}")]
    if isinstance(value, list) and value:
        return [
            leaf
            for index, one in enumerate(cast("list[object]", value))
            for leaf in _leaves(one, f"{path}[{index}]")
        ]
    return [path]
