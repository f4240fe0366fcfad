"""The datasets of the settings: what each role sees of them, and how they are opened."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from headrace.config.datasets import ANYBODY, Acceleration, DatasetSettings, acceleration_of
from headrace.config.names import nearest
from headrace.config.secrets import KeyOf, secret_of
from headrace.data.extensions import extension_path
from headrace.data.guard import reserved
from headrace.data.job import View
from headrace.data.source import Connector, Opened, Source, literal, quoted
from headrace.errors import InvalidRequest, UsageError

KINDS = ("file", "http", "https", "s3", "postgres", "mysql", "sqlite", "duckdb", "iceberg", "delta")


class Dataset(Struct, frozen=True):
    """An entry of [datasets]; `copy` is the file of its local copy."""

    name: str
    kind: str
    location: str
    settings: DatasetSettings
    connector: Connector
    acceleration: Acceleration | None = None
    copy: Path | None = None


class Catalogue:
    """All datasets. Making one reads no source and no secret; UsageError where an entry cannot be."""

    def __init__(
        self, entries: Mapping[str, DatasetSettings], copies: Path, key_of: KeyOf | None = None
    ) -> None:
        self._key_of = key_of
        self._datasets = {name: _dataset(name, entry, copies) for name, entry in entries.items()}
        for dataset in self:
            self._source(dataset, secret="x" if dataset.settings.secret else None)

    def __iter__(self) -> Iterator[Dataset]:
        return iter(self._datasets.values())

    def find(self, name: str, role: str | None = None, *, ruled: bool = True) -> Dataset:
        """The dataset of that name, InvalidRequest where the role sees none."""
        seen = [dataset.name for dataset in self if not ruled or self.visible(dataset, role)]
        if name not in seen:
            listed = nearest(name, seen) if seen else ": there is none"
            raise InvalidRequest(f"no dataset is named {name!r}{listed}", param="dataset")
        return self._datasets[name]

    def extensions(self) -> list[str]:
        """The files of DuckDB's extensions that the datasets need; ExtraMissing names a missing one."""
        needed = {"duckdb": ()} | {
            name: dataset.connector.extra
            for dataset in self
            for name in self._source(dataset, "x" if dataset.settings.secret else None).extensions
        }
        del needed["duckdb"]
        return [extension_path(name, str(extra)) for name, extra in sorted(needed.items(), key=_avro_first)]

    def visible(self, dataset: Dataset, role: str | None) -> bool:
        """Whether a role may read a dataset: where it has rules, one must be for the role or for all."""
        rules = (dataset.settings.where, dataset.settings.columns)
        return all(not rule or role in rule or ANYBODY in rule for rule in rules)

    def views(
        self, role: str | None, sql: str | None = None, *, ruled: bool = True
    ) -> tuple[tuple[View, ...], set[str]]:
        """What a role reads, and every secret in it. Without `ruled` all of it, as its owner does. Secrets
        are read only of datasets whose names `sql` has."""
        views: list[View] = []
        secrets: set[str] = set()
        for dataset in self:
            if not ruled or self.visible(dataset, role):
                view, found = self.view(
                    dataset,
                    role if ruled else None,
                    ruled=ruled,
                    opened=sql is None or names(sql, dataset.name),
                )
                views.append(view)
                secrets |= found
        return tuple(views), secrets

    def view(
        self,
        dataset: Dataset,
        role: str | None,
        *,
        ruled: bool = True,
        original: bool = False,
        opened: bool = True,
    ) -> tuple[View, set[str]]:
        """What a role sees of a dataset, from its copy unless `original`, and the secrets in that; without
        `opened` it has none and cannot be read."""
        columns = where = None
        if ruled:
            columns = _rule(dataset.settings.columns, role)
            where = _rule(dataset.settings.where, role)
        shown = None if columns is None else tuple(cast("list[str]", columns))
        condition = None if where is None else str(where)
        if dataset.copy is not None and not original:
            return View(dataset.name, _copied(dataset), shown, condition), set()
        secret = None
        if dataset.settings.secret is not None and not opened:
            secret = "x"
        elif dataset.settings.secret is not None:
            secret = secret_of(dataset.settings.secret, f"datasets.{dataset.name}.secret", self._key_of)
        source = self._source(dataset, secret)
        return View(dataset.name, source, shown, condition), _parts_of(secret) | _signature_of(dataset)

    def _source(self, dataset: Dataset, secret: str | None) -> Source:
        return dataset.connector.connect(Opened(dataset.name, dataset.settings, dataset.location, secret))


def _dataset(name: str, settings: DatasetSettings, copies: Path) -> Dataset:
    kind, _, location = settings.source.partition(":")
    if kind not in KINDS:
        raise UsageError(f"datasets.{name}.from: there is no kind {kind!r}{nearest(kind, KINDS)}")
    if reserved(name):
        raise UsageError(f"datasets.{name}: names that begin so are DuckDB's own: name it otherwise")
    if not location:
        raise UsageError(f"datasets.{name}.from says no location behind {kind}:")
    connector = importlib.import_module(f"headrace.data.connectors.{kind}").CONNECTOR
    acceleration = acceleration_of(settings, f"datasets.{name}")
    copy = copies / f"{name}.duckdb" if acceleration is not None else None
    return Dataset(name, kind, location, settings, connector, acceleration, copy)


def _copied(dataset: Dataset) -> Source:
    name = quoted(f"__source_{dataset.name}")
    return Source(
        relation=f"{name}.main.data",
        statements=(f"ATTACH {literal(str(dataset.copy))} AS {name} (READ_ONLY)",),
    )


def _rule(rules: Mapping[str, object], role: str | None) -> object | None:
    return rules.get(role or ANYBODY, rules.get(ANYBODY)) if rules else None


def _parts_of(secret: str | None) -> set[str]:
    """A secret and, where it is a URL, the password in it, as it may stand in messages."""
    if secret is None:
        return set()
    found = {secret}
    if "://" in secret and (password := urlsplit(secret).password):
        found |= {password, unquote(password)}
    return found


def names(sql: str, dataset: str) -> bool:
    """Whether a statement may name a dataset: what does not have its name does not."""
    return dataset.lower() in sql.lower()


def _signature_of(dataset: Dataset) -> set[str]:
    """What stands behind the ? of a web address: often what gives access to it."""
    signature = dataset.location.partition("?")[2]
    return {signature} if dataset.kind in ("http", "https") and signature else set()


def _avro_first(entry: tuple[str, object]) -> tuple[bool, str]:
    return entry[0] != "avro", entry[0]  # iceberg needs it loaded
